"""The product on real Kubernetes components: etcd, kube-apiserver, kube-scheduler, kubelet and containerd."""
