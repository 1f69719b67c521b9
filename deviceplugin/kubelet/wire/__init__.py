"""The kubelet's two gRPC services: `.proto` files and the code that `make proto` generates from them."""
