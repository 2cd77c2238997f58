"""The server: protected tables, the one door out, the fits, and who may ask for them."""

import os

# TLS 1.3 only, in every process that has a part of this package. gRPC has no setting for the least version, and reads
# its list of ciphers when it is first imported, so it is set here, before that. The list is for TLS 1.2 (the ciphers of
# 1.3 are fixed); what is on it needs a key that was agreed on beforehand, and there is none: no handshake of 1.2 can
# succeed. The server tries one when it starts, and ends if it is answered.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"
# Else every stranger's handshake that fails is a line in the log that is not the server's.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# The parent of fits is forked before gRPC has begun anything, and no fit uses it. Its handlers of forks would end a
# process that was forked from one with channels, and that forks again.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
