"""A cluster as the API shows it, changed on trial: what fits, and what refuses a pod."""

from gpupack.whatif.answers import FitAnswer, Why, as_json
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import FitAsk, fit

__all__ = ["Cluster", "FitAnswer", "FitAsk", "Why", "as_json", "fit"]
