"""The MCP SDK of the stateless revision: list, call, progress, error, cancel, resources, an approval."""

import asyncio
import os
import sys

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult, TextContent


def text(result):
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


async def main():
    headers = {"Authorization": "Bearer " + os.environ["TEST_KEY"]}
    sandbox = os.environ["TEST_SANDBOX"]
    async with httpx2.AsyncClient(headers=headers, timeout=90) as http:
        transport = streamable_http_client(os.environ["TEST_URL"] + "/mcp", http_client=http)
        async with Client(transport) as client:
            print("speaks", client.protocol_version)
            listed = await client.list_tools()
            print("lists exec:", any(tool.name == "exec" for tool in listed.tools))

            told = []

            async def progress(done, total, message):
                told.append(message or "")

            command = "echo one; sleep 1; echo two; exit 3"
            arguments = {"sandboxId": sandbox, "command": command}
            result = await client.call_tool("exec", arguments, progress_callback=progress)
            print("exit code:", result.structured_content["exitCode"], "error:", bool(result.is_error))
            print("progress:", any("one" in message for message in told))

            # Zeros are six characters each in JSON: the answer is told in less, and is told.
            zeros = {"sandboxId": sandbox, "command": "head -c 1048576 /dev/zero"}
            large = (await client.call_tool("exec", zeros, progress_callback=progress)).structured_content
            print("large:", large["exitCode"], large["stdoutBytes"], large["truncated"])

            plain = await client.call_tool("exec", {"sandboxId": sandbox, "command": "echo plain"})
            print("text has the output:", "plain" in text(plain))

            missing = await client.call_tool("getSandbox", {"sandboxId": "none-such"})
            print("missing:", missing.is_error, text(missing).split(":")[0])

            dry = await client.call_tool("destroySandbox", {"sandboxId": sandbox, "dryRun": True})
            print("dry run:", bool(dry.is_error), "dryRunResult" in dry.structured_content)

            begun = asyncio.Event()

            async def noticed(done, total, message):
                begun.set()

            silent = {"sandboxId": sandbox, "command": "echo begun; exec -a cancelled sleep 600", "timeout": 600}
            call = asyncio.create_task(client.call_tool("exec", silent, progress_callback=noticed))
            await asyncio.wait_for(begun.wait(), 90)
            call.cancel()
            try:
                await call
            except asyncio.CancelledError:
                pass
            look = {"sandboxId": sandbox, "command": "pgrep -f '[c]ancelled sleep' >/dev/null && echo runs || echo gone"}
            state = ""
            for _ in range(60):
                state = (await client.call_tool("exec", look)).structured_content["stdout"].strip()
                if state == "gone":
                    break
                await asyncio.sleep(0.5)
            print("after cancel:", state)

            await client.call_tool("exec", {"sandboxId": sandbox, "command": "echo read me > 'a b.md'"})
            templates = await client.list_resource_templates()
            print("templates:", sorted(each.uri_template for each in templates.resource_templates))
            listed = await client.list_resources()
            print("lists the workspace:", any(str(each.uri) == f"sandbox://{sandbox}/" for each in listed.resources))
            read = await client.read_resource(f"sandbox://{sandbox}/a%20b.md")
            print("reads:", read.contents[0].text.strip(), read.contents[0].mime_type)
            try:
                await client.read_resource(f"sandbox://{sandbox}/none")
            except MCPError as error:
                print("not there:", error.error.code)

            asked = []

            async def decide(context, params):
                # Another key decides while the user of this client is asked whether to wait.
                asked.append(params.message)
                waiting = (await client.call_tool("listJobs", {"state": "awaiting_approval", "sandboxId": sandbox}))
                for job in waiting.structured_content["jobs"]:
                    await client.call_tool("approveJob", {"jobId": job["jobId"]})
                return ElicitResult(action="accept", content={"wait": True})

            bound = {"Authorization": "Bearer " + os.environ["TEST_BOUND_KEY"]}
            async with httpx2.AsyncClient(headers=bound, timeout=90) as agent_http:
                agent_transport = streamable_http_client(os.environ["TEST_URL"] + "/mcp", http_client=agent_http)
                async with Client(agent_transport, elicitation_callback=decide) as agent:
                    told = await agent.call_tool("exec", {"sandboxId": sandbox, "command": "echo approved"})
                    print("asked:", len(asked), "answered:", told.structured_content["stdout"].strip())


asyncio.run(main())
sys.exit(0)
