"""Kill a worker's process group when the test run that started it is gone.

``python watch.py PGID`` reads its standard input, a pipe of which the test run holds the other end, and
acts when that ends. Tying MAIN alone to the test run is not enough: a pool child that waits for work
does not notice that its MAIN was killed, and would stay for ever.

Executed as a file: it must not import anything of the project.
"""

import os
import signal
import sys

sys.stdin.buffer.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except ProcessLookupError:
    pass  # it ended first
