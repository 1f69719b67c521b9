// Only marks the root of the module: each minor version has a go.mod in a folder of its own, written by
// pin.py, and is built with go build -modfile=1.37/go.mod.
module gpupack.test/kubebin
