"""The contract: protobuf messages and gRPC services, generated from the `.proto` files beside them."""
