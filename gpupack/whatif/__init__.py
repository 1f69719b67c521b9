"""A cluster as the API shows it, changed on trial: what fits, and what refuses a pod."""

from gpupack.encodings import as_json
from gpupack.whatif.answers import FitAnswer, PodExplanation
from gpupack.whatif.cluster import Cluster
from gpupack.whatif.fit import FitQuestion, answer_fit

__all__ = ["Cluster", "FitAnswer", "FitQuestion", "PodExplanation", "answer_fit", "as_json"]
