"""The scenarios that every host relies on, through the client package. Usage: seeds.py ADDRESS"""

import asyncio
import sys

import invigil_client


async def scenario(address, name, test):
    async with invigil_client.connect(address, agent_id=f"python-{name}") as host:
        await test(host)
    print("ok", name)


async def command_line(host):
    @host.tool("drive_cli")
    def drive_cli(prompt):
        return {"exit_code": 3, "output_tail": "the end"}

    await host.register()
    run = await host.start("try it")
    await host.submit([{"id": "a", "tool": "drive_cli", "parameters": {"prompt": "fix it"}}])
    turn = (await host.trace(run))[1]
    assert (turn["record"], turn["index"], turn["prompt"], turn["output"]) == ("turn", 0, "fix it", "the end"), turn
    assert turn["cli_outcome"] == {"kind": "exited", "code": 3}, turn


async def checks(host):
    passed = iter([True, False])

    @host.tool("check_outcome")
    def check_outcome():
        return {"passed": next(passed)}

    await host.register()
    run = await host.start("check it")
    for _ in range(2):
        await host.submit([{"id": "a", "tool": "check_outcome"}])
    turns = [record for record in await host.trace(run) if record["record"] == "turn"]
    assert [(turn["index"], turn["verifier_verdict"]) for turn in turns] == [(0, "pass"), (1, "fail")], turns


async def denied(host):
    @host.tool("drive_cli")
    def drive_cli(prompt):
        raise AssertionError("it was called")

    await host.register()
    await host.call("policy.register", name="no_rm", rule="deny_tool_param", target="drive_cli", key="prompt", pattern="rm -rf")
    run = await host.start("x")
    result = (await host.submit([{"id": "a", "tool": "drive_cli", "parameters": {"prompt": "rm -rf /"}}]))[0]
    assert (result["status"], result["rejected_by"]) == ("rejected", "policy"), result
    turn = (await host.trace(run))[1]
    assert turn["policy_rejected"] == {"rule": "no_rm", "param": "prompt"}, turn


async def too_slow(host):
    @host.tool("drive_cli")
    async def drive_cli():
        await asyncio.sleep(60)

    await host.register()
    run = await host.start("x")
    result = (await host.submit([{"id": "a", "tool": "drive_cli", "timeout_ms": 200}]))[0]
    assert result["status"] == "timed_out", result
    assert (await host.trace(run))[1]["cli_outcome"] == {"kind": "timeout"}


async def plain(host):
    @host.tool("add", {"type": "object", "required": ["a", "b"]})
    def add(a, b):
        return a + b

    await host.register()
    run = await host.start("x")
    assert (await host.submit([{"id": "a", "tool": "add", "parameters": {"a": 1, "b": 2}}]))[0]["output"] == 3
    turn = (await host.trace(run))[1]
    assert turn["tool"] == "add" and turn["verifier_verdict"] == "not_run" and "cli_outcome" not in turn, turn


async def no_run(host):
    @host.tool("add")
    def add():
        return 1

    await host.register()
    await host.submit([{"id": "a", "tool": "add"}])
    assert (await host.call("runs.list"))["runs"] == []


async def batches(host):
    run = await host.start("x")
    turns = [{"index": n, "parameters": {"n": n}} for n in range(25)]
    answers = await asyncio.gather(*[host.call("runs.record_turns", run_id=run, turns=turns) for _ in range(2)])
    assert sorted(answer["base_index"] for answer in answers) == [0, 25], answers
    kept = [record["index"] for record in await host.trace(run) if record["record"] == "turn"]
    assert kept == list(range(50)), kept


async def main():
    for test in [command_line, checks, denied, too_slow, plain, no_run, batches]:
        await scenario(sys.argv[1], test.__name__, test)


asyncio.run(main())
