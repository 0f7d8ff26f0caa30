"""What an agent does, with the Python SDK of MCP: find a tool, call it, hear of its progress, and read an error."""

import asyncio
import os

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main():
    headers = {"Authorization": "Bearer " + os.environ["CLOUDFLARE_OPS_KEY"]}
    async with httpx2.AsyncClient(headers=headers, timeout=120) as http:
        transport = streamable_http_client(os.environ["CLOUDFLARE_OPS_URL"] + "/mcp", http_client=http)
        async with Client(transport) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            print(len(tools), "tools; exec:", tools["exec"].description.split(".")[0])

            async def progress(done, total, message):
                if message:
                    print("meanwhile:", message.strip())

            # No sandbox is named, so one is made. It goes after five minutes without use.
            command = "python3 -c 'print(6 * 7)'; sleep 1; echo more; exit 1"
            result = await client.call_tool("exec", {"command": command}, progress_callback=progress)
            # A command that exits with 1 is a call that succeeded: its exit code is part of the answer.
            output = result.structured_content
            print("exit code", output["exitCode"], "and", output["stdout"].split())

            again = await client.call_tool("readFile", {"sandboxId": output["sandboxId"], "path": "none.txt"})
            print("an error is told as one:", again.is_error, "-", again.content[0].text.splitlines()[0])
            await client.call_tool("destroySandbox", {"sandboxId": output["sandboxId"]})


asyncio.run(main())
