"""The control socket: how other processes of the same user reach a running pipeline."""
