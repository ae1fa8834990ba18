"""Other servers to measure beside ours, when they are installed: nginx and eRPC. Used by bench/rpc.py.

Each runs from a directory of its own, in the foreground, on a port of its own, with one worker, without an access log,
in front of the same upstream. nginx does far less than a gateway: it answers from memory with a fixed text, and passes
requests on without reading them; it checks no key and counts nothing. eRPC caches and repeats, but is given neither
keys nor limits here. Its configuration follows its documentation (docs.erpc.cloud); it could not be tried where this
was written, so read what it prints before you believe its figures.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NGINX = """
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests 100000000;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  upstream node {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    location = /memory {{
      default_type application/json;
      return 200 '{{"jsonrpc":"2.0","id":1,"result":"0x1"}}';
    }}
    location = /proxied {{
      proxy_pass http://node/;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
}}
"""

# The test node says that it is chain 1.
ERPC = """
logLevel: error
server:
  httpHostV4: 127.0.0.1
  httpPort: {port}
metrics:
  enabled: false
database:
  evmJsonRpcCache:
    connectors:
      - id: memory-cache
        driver: memory
    policies:
      - network: "*"
        method: "*"
        finality: finalized
        connector: memory-cache
        ttl: 0
      - network: "*"
        method: "*"
        finality: realtime
        connector: memory-cache
        ttl: 2s
projects:
  - id: main
    upstreams:
      - id: node
        endpoint: http://127.0.0.1:{upstream}
        evm:
          chainId: 1
"""


class Other:
    """Another server that is running: its process, and where to ask it."""

    def __init__(self, name: str, pid: int, memory_url: str, proxied_url: str) -> None:
        self.name = name
        self.pid = pid
        self.memory_url = memory_url
        self.proxied_url = proxied_url


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def nginx(pinned: Callable[[list[str]], list[str]], upstream: int, directory: Path) -> Iterator[Other | None]:
    """nginx, or None when it is not installed."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        yield None
        return
    port = free_port()
    config = directory / "nginx.conf"
    config.write_text(NGINX.format(directory=directory, port=port, upstream=upstream))
    command = [program, "-p", str(directory), "-e", str(directory / "error.log"), "-c", str(config)]
    with _running(pinned(command), port) as pid:
        base = f"http://127.0.0.1:{port}"
        yield Other("nginx (fixed answer; plain proxy)", _worker_of(pid), f"{base}/memory", f"{base}/proxied")


@contextmanager
def erpc(pinned: Callable[[list[str]], list[str]], upstream: int, directory: Path) -> Iterator[Other | None]:
    """eRPC, or None when it is not installed."""
    program = shutil.which("erpc")
    if program is None:
        yield None
        return
    port = free_port()
    config = directory / "erpc.yaml"
    config.write_text(ERPC.format(port=port, upstream=upstream))
    with _running(pinned([program, str(config)]), port) as pid:
        url = f"http://127.0.0.1:{port}/main/evm/1"
        yield Other("eRPC", pid, url, url)


@contextmanager
def _running(command: list[str], port: int, seconds: float = 20.0) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + seconds
        while True:
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended with status {process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise SystemExit(f"nothing listens on port {port} after {seconds:g} s") from None
                time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _worker_of(pid: int) -> int:
    """The worker of nginx's master process, which does the work."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = children.read_text().split() if children.exists() else []
    return int(found[0]) if found else pid
