"""A relay in front of a node: passes bytes on both ways. Run by `tests.support.relay` as a process of its own.

`python -m tests.support.relay_process PORT_OF_THE_NODE PORT_TO_LISTEN_ON`; port 0 takes a free one. The port is printed
once it listens. It imports nothing but the standard library, so that it starts at once.
"""

import asyncio
import contextlib
import sys

_HOST = "127.0.0.1"


async def _serve(node_port: int, port: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            node_reader, node_writer = await asyncio.open_connection(_HOST, node_port)
            await asyncio.gather(_pass_on(reader, node_writer), _pass_on(node_reader, writer))

    server = await asyncio.start_server(relay, _HOST, port)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        return
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
