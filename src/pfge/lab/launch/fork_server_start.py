"""What the server of `fork_server` imports first; no other process may import it."""

import signal

# Ctrl-C reaches the driver too, which ends the workers.
signal.signal(signal.SIGINT, signal.SIG_IGN)
