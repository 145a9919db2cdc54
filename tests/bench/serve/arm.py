"""The Python server of the benchmark: PyTorch behind Starlette and uvicorn, with uvloop and httptools.

    arm.py WEIGHTS THREADS ROWS

ROWS is the maximum number of requests in a batch; with 1 each request is computed by itself."""
import asyncio
import os
import socket
import sys
import threading

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from torch import nn

WIDTHS = [32, 64, 64, 10]


def rss_kb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def network(path):
    with open(path, "rb") as f:
        weights = torch.frombuffer(bytearray(f.read()), dtype=torch.float32)
    layers = []
    with torch.no_grad():
        for n, out in zip(WIDTHS, WIDTHS[1:]):
            layer = nn.Linear(n, out)
            layer.weight.copy_(weights[: n * out].view(out, n))
            layer.bias.copy_(weights[n * out : (n + 1) * out])
            weights = weights[(n + 1) * out :]
            layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


class Batcher:
    """Computes the requests that wait whenever the event loop has handled what had arrived."""

    def __init__(self, model, rows):
        self.model, self.rows, self.queue = model, rows, asyncio.Queue()

    async def run(self):
        while True:
            batch = [await self.queue.get()]
            await asyncio.sleep(0)
            while len(batch) < self.rows and not self.queue.empty():
                batch.append(self.queue.get_nowait())
            with torch.inference_mode():
                x = torch.frombuffer(bytearray(b"".join(body for body, _ in batch)), dtype=torch.float32)
                y = self.model(x.view(len(batch), WIDTHS[0])).numpy()
            for row, (_, future) in zip(y, batch):
                if not future.done():
                    future.set_result(row.tobytes())

    async def predict(self, body):
        future = asyncio.get_running_loop().create_future()
        self.queue.put_nowait((body, future))
        return await future


def main():
    path, threads, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.ones(4).add(1)
    base = rss_kb()
    model = network(path)
    batcher = Batcher(model, rows)
    tasks = []

    async def predict(request):
        body = await request.body()
        if len(body) != 4 * WIDTHS[0]:
            return Response("want a row of 32 floats", 400)
        if rows == 1:
            with torch.inference_mode():
                answer = model(torch.frombuffer(bytearray(body), dtype=torch.float32).view(1, -1)).numpy().tobytes()
        else:
            if not tasks:
                tasks.append(asyncio.create_task(batcher.run()))
            answer = await batcher.predict(body)
        return Response(answer, media_type="application/octet-stream")

    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=[Route("/predict", predict, methods=["POST"])]), loop="uvloop", http="httptools", log_level="error", access_log=False))

    def wait():
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
    host, port = listener.getsockname()
    print(f"{host}:{port}", base, flush=True)
    server.run(sockets=[listener])


main()
