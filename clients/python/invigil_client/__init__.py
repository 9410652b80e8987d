"""A client of the Invigil daemon.

    async with invigil_client.connect() as host:
        @host.tool("add", {"type": "object", "required": ["a", "b"]})
        def add(a, b):
            return a + b
        await host.register()
        run = await host.start("add two numbers")
        results = await host.submit([{"id": "sum", "tool": "add", "parameters": {"a": 1, "b": 2}}])

`docs/daemon.md` says what the daemon promises. Every method can be called with `host.call(method, **params)`.
"""

import asyncio
import inspect
import itertools
import json
import os
import pathlib

import websockets

__all__ = ["Host", "RpcError", "connect"]


class RpcError(Exception):
    """What the daemon says when it says no."""

    def __init__(self, error):
        super().__init__(f"{error.get('message')} ({error.get('code')})")
        self.code = error.get("code")
        self.message = error.get("message")
        self.data = error.get("data") or {}


def home():
    """Where the daemon of this user keeps its files."""
    if os.environ.get("INVIGIL_HOME"):
        return pathlib.Path(os.environ["INVIGIL_HOME"])
    data = os.environ.get("XDG_DATA_HOME", "")
    if not data.startswith("/"):
        data = pathlib.Path.home() / ".local/share"
    return pathlib.Path(data) / "invigil"


class connect:
    """Connects over the Unix socket, or over TCP if there is an address (`127.0.0.1:7117`)."""

    def __init__(self, address=None, *, agent_id=None, operator=False, directory=None):
        self.address = address
        self.agent_id = agent_id
        self.operator = operator
        self.directory = pathlib.Path(directory or home()) / "daemon"

    async def __aenter__(self):
        options = {"max_size": None, "ping_interval": None}
        if self.address:
            socket = await websockets.connect(f"ws://{self.address}/ws", **options)
        else:
            path = str(self.directory / "socket")
            socket = await websockets.unix_connect(path, uri="ws://localhost/ws", **options)
        self.host = Host(socket)
        auth = {"agent_id": self.agent_id} if self.agent_id else {}
        if self.operator:
            auth["token"] = (self.directory / "operator-token").read_text()
        elif self.address:
            auth["token"] = (self.directory / "token").read_text()
        self.host.session = await self.host.call("session.auth", **auth)
        return self.host

    async def __aexit__(self, *_):
        await self.host.close()


class Host:
    """An open connection."""

    def __init__(self, socket):
        self.socket = socket
        self.session = None
        self.events = asyncio.Queue()
        """Notifications of the daemon: `runs.trace.event` and the like, as (method, params)."""
        self._ids = itertools.count(1)
        self._answers = {}
        self._tools = {}
        self._running = {}
        self._followed = {}
        self._reader = asyncio.ensure_future(self._read())

    async def close(self):
        await self.socket.close()
        await self._reader

    async def call(self, method, /, **params):
        """Calls a method and returns its result."""
        return await self.request(method, params)

    async def request(self, method, params):
        """The same with parameters that are no keywords."""
        if self._reader.done():
            raise ConnectionError("the connection is closed")
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._send({"id": number, "method": method, "params": params})
        return await answer

    def tool(self, name, parameters=None, **more):
        """A decorator: the function, plain or async, is called with the parameters as keywords."""

        def decorate(function):
            self._tools[name] = (function, {"name": name, "parameters": parameters or {}, **more})
            more.setdefault("description", (function.__doc__ or "").strip())
            self._tools[name][1].update(more)
            return function

        return decorate

    async def register(self):
        """Tells the daemon of all tools."""
        return await self.request("tools.register", [info for _, info in self._tools.values()])

    async def start(self, intent, **more):
        """Begins a run; its id."""
        return (await self.call("runs.start", intent=intent, **more))["run_id"]

    async def submit(self, actions, id=None, source="python", **more):
        """Has actions done; their results."""
        proposal = {"id": id or f"proposal-{next(self._ids)}", "source": source, "actions": actions, **more}
        return (await self.call("proposal.submit", proposal=proposal))["results"]

    async def complete(self, run_id, status="success", **outcome):
        """Ends a run."""
        return await self.call("runs.complete", run_id=run_id, outcome={"status": status, **outcome})

    async def task(self, repo, intent, agent, **more):
        """Begins a task; how it stands. `follow` tells what becomes of it."""
        return await self.call("coder.start", repo=str(repo), intent=intent, agent=agent, **more)

    async def follow(self, task_id, from_seq=0):
        """Yields the records of a task, from one on, as they come, until its end."""
        coming = self._followed[task_id] = asyncio.Queue()
        try:
            page = await self.call("coder.subscribe", task_id=task_id, from_seq=from_seq)
            for event in page["events"]:
                coming.put_nowait(event)
            while (event := await coming.get()) is not None:
                if event["seq"] < from_seq:
                    continue
                from_seq = event["seq"] + 1
                yield event
                if event["kind"] == "task_ended":
                    return
            raise ConnectionError("the connection is closed")
        finally:
            del self._followed[task_id]

    async def trace(self, run_id):
        """All records of a run."""
        records, cursor = [], 0
        while True:
            page = await self.call("runs.get_trace", run_id=run_id, cursor=cursor)
            if page.get("not_found"):
                raise KeyError(run_id)
            if not page["records"]:
                return records
            records += page["records"]
            cursor = page["cursor"]

    async def _send(self, message):
        await self.socket.send(json.dumps({"jsonrpc": "2.0", **message}))

    async def _read(self):
        try:
            async for text in self.socket:
                message = json.loads(text)
                if "method" in message:
                    self._asked(message)
                    continue
                answer = self._answers.pop(message.get("id"), None)
                if answer is None or answer.done():
                    continue
                if "error" in message:
                    answer.set_exception(RpcError(message["error"]))
                else:
                    answer.set_result(message["result"])
        except websockets.ConnectionClosed:
            pass
        finally:
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the connection is closed"))
            for coming in self._followed.values():
                coming.put_nowait(None)
            for task in list(self._running.values()):
                task.cancel()

    def _asked(self, message):
        method, params = message["method"], message.get("params", {})
        if method == "tools.execute":
            task = asyncio.ensure_future(self._execute(message["id"], params))
            self._running[params["request_id"]] = task
            task.add_done_callback(lambda _: self._running.pop(params["request_id"], None))
        elif method == "tools.cancel":
            task = self._running.get(params["request_id"])
            if task:
                task.cancel()
        elif method == "coder.event" and params["task_id"] in self._followed:
            self._followed[params["task_id"]].put_nowait(params)
        else:
            self.events.put_nowait((method, params))

    async def _execute(self, number, params):
        try:
            function, _ = self._tools[params["tool"]]
            result = function(**params["parameters"])
            if inspect.isawaitable(result):
                result = await result
            answer = {"id": number, "result": result}
        except asyncio.CancelledError:
            return
        except Exception as error:
            answer = {"id": number, "error": {"code": 1, "message": f"{type(error).__name__}: {error}"}}
        try:
            await self._send(answer)
        except websockets.ConnectionClosed:
            pass
