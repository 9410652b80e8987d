"""Registers two tools, starts a run, submits a proposal, and prints the trace. Needs a daemon: `invigil serve`."""

import asyncio
import json

import invigil_client


async def main():
    async with invigil_client.connect(agent_id="example") as host:

        @host.tool("count_words", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
        def count_words(text):
            """Counts words."""
            return {"words": len(text.split())}

        @host.tool("shout")
        async def shout(text):
            """Says it loudly."""
            return text.upper()

        await host.register()
        await host.call("policy.register", name="be_polite", rule="deny_tool_param", target="shout", key="text", pattern="damn")
        run = await host.start("count words and say how many")
        results = await host.submit(
            [
                {"id": "count", "tool": "count_words", "parameters": {"text": "one two three"}},
                {"id": "say", "tool": "shout", "parameters": {"text": "there are ${count.output.words}"}},
                {"id": "swear", "tool": "shout", "parameters": {"text": "damn"}, "failure_behavior": "skip"},
            ]
        )
        await host.complete(run, summary="counted")
        print(json.dumps(results, indent=2))
        for record in await host.trace(run):
            print(json.dumps(record))


if __name__ == "__main__":
    asyncio.run(main())
