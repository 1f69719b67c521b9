// Only marks the root of the module: what is built is pinned in the folder of each minor version,
// go build -modfile=1.37/go.mod. A new version is pinned by pin.py.
module gpupack.test/kubebin
