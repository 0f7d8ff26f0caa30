"""The MCP SDK before version 2, which speaks the earlier revisions: list, call, progress, error, cancel, resources."""

import asyncio
import os

import httpx
from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CancelledNotification, CancelledNotificationParams, ClientNotification, TextContent
from pydantic import AnyUrl


def text(result):
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


async def main():
    headers = {"Authorization": "Bearer " + os.environ["TEST_KEY"]}
    sandbox = os.environ["TEST_SANDBOX"]
    async with httpx.AsyncClient(headers=headers, timeout=90) as http:
        async with streamable_http_client(os.environ["TEST_URL"] + "/mcp", http_client=http) as (read, write, _):
            async with ClientSession(read, write) as client:
                begun = await client.initialize()
                print("speaks", begun.protocolVersion)
                listed = await client.list_tools()
                print("lists exec:", any(tool.name == "exec" for tool in listed.tools))

                told = []

                async def progress(done, total, message):
                    told.append(message or "")

                command = "echo one; sleep 1; echo two; exit 3"
                arguments = {"sandboxId": sandbox, "command": command}
                result = await client.call_tool("exec", arguments, progress_callback=progress)
                print("exit code:", result.structuredContent["exitCode"], "error:", bool(result.isError))
                print("progress:", any("one" in message for message in told))

                # Zeros are six characters each in JSON: the answer is told in less, and is told.
                zeros = {"sandboxId": sandbox, "command": "head -c 1048576 /dev/zero"}
                large = (await client.call_tool("exec", zeros, progress_callback=progress)).structuredContent
                print("large:", large["exitCode"], large["stdoutBytes"], large["truncated"])

                plain = await client.call_tool("exec", {"sandboxId": sandbox, "command": "echo plain"})
                print("text has the output:", "plain" in text(plain))

                missing = await client.call_tool("getSandbox", {"sandboxId": "none-such"})
                print("missing:", missing.isError, text(missing).split(":")[0])

                dry = await client.call_tool("destroySandbox", {"sandboxId": sandbox, "dryRun": True})
                print("dry run:", bool(dry.isError), "dryRunResult" in dry.structuredContent)

                begun = asyncio.Event()

                async def noticed(done, total, message):
                    begun.set()

                silent = {"sandboxId": sandbox, "command": "echo begun; exec -a cancelled sleep 600", "timeout": 600}
                call = asyncio.create_task(client.call_tool("exec", silent, progress_callback=noticed))
                await asyncio.wait_for(begun.wait(), 90)
                # The SDK gives each request the next number, and cancels none by itself.
                params = CancelledNotificationParams(requestId=client._request_id - 1, reason="no patience")
                await client.send_notification(ClientNotification(CancelledNotification(params=params)))
                look = {"sandboxId": sandbox, "command": "pgrep -f '[c]ancelled sleep' >/dev/null && echo runs || echo gone"}
                state = ""
                for _ in range(60):
                    state = (await client.call_tool("exec", look)).structuredContent["stdout"].strip()
                    if state == "gone":
                        break
                    await asyncio.sleep(0.5)
                print("after cancel:", state, "answered:", call.done())
                call.cancel()
                try:
                    await call
                except asyncio.CancelledError:
                    pass

                await client.call_tool("exec", {"sandboxId": sandbox, "command": "echo read me > 'a b.md'"})
                templates = await client.list_resource_templates()
                print("templates:", sorted(each.uriTemplate for each in templates.resourceTemplates))
                listed = await client.list_resources()
                print("lists the workspace:", any(str(each.uri) == f"sandbox://{sandbox}/" for each in listed.resources))
                read = await client.read_resource(AnyUrl(f"sandbox://{sandbox}/a%20b.md"))
                print("reads:", read.contents[0].text.strip(), read.contents[0].mimeType)
                try:
                    await client.read_resource(AnyUrl(f"sandbox://{sandbox}/none"))
                except McpError as error:
                    print("not there:", error.error.code)


asyncio.run(main())
