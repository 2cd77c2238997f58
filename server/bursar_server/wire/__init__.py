"""gRPC server: the gate before every call, the services, and the conversion of messages and errors.

Must not import admin or process.
"""
