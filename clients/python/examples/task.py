"""Has an agent work on a repository and says what became of it. Needs a daemon: `invigil serve`.

    python task.py REPOSITORY 'what is wanted' 'the agent' 'a check'
"""

import asyncio
import sys

import invigil_client


async def main(repo, intent, agent, check):
    contract = {"description": intent, "checks": [{"name": "as_asked", "command": check}]}
    async with invigil_client.connect(agent_id="example") as host:
        task = await host.task(repo, intent, agent, contract=contract)
        async for event in host.follow(task["task_id"]):
            print(event["seq"], event["kind"])
            if event["kind"] in ("task_proposed", "task_ended"):
                break
        task = await host.call("coder.get", task_id=task["task_id"])
        print(task["verdict"])
        if task["state"] == "needs_approval":
            # No program can approve: a person looks at the change and decides.
            print(f"look at it: invigil task approve {task['task_id']}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
