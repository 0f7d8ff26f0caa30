// Output as it comes, with fetch alone: events of `text/event-stream`, of which exactly one `result` or `error` is the last.

const url = process.env.CLOUDFLARE_OPS_URL ?? "http://127.0.0.1:8787";
const headers = {
  authorization: `Bearer ${process.env.CLOUDFLARE_OPS_KEY}`,
  "content-type": "application/json",
  accept: "text/event-stream",
};

interface Told {
  event: string;
  data: any;
}

async function* events(tool: string, input: object, signal?: AbortSignal): AsyncGenerator<Told> {
  const response = await fetch(`${url}/v1/tools/${tool}`, { method: "POST", headers, body: JSON.stringify(input), signal });
  if (!response.ok || response.body === null) {
    // What is refused before it begins is an ordinary problem with its status.
    throw new Error(JSON.stringify(await response.json()));
  }
  let text = "";
  for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
    const parts = (text + piece).split("\n\n");
    text = parts.pop() ?? "";
    for (const lines of parts.map((part) => part.split("\n"))) {
      const field = (name: string) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      const event = field("event");
      // A line that begins with a colon is a heartbeat.
      if (event !== undefined) yield { event, data: JSON.parse(field("data") ?? "null") };
    }
  }
}

// Bytes that are no UTF-8 arrive as base64.
const bytes = (chunk: { data: string; encoding: string }) => Buffer.from(chunk.data, chunk.encoding === "base64" ? "base64" : "utf8");

let ended = "the stream ended without a result: nobody knows what became of the call";
let sandboxId = "";
for await (const { event, data } of events("exec", { command: "for i in 1 2 3; do echo $i; sleep 0.2; done; exit 4" })) {
  if (event === "stdout") process.stdout.write(bytes(data));
  if (event === "stderr") process.stderr.write(bytes(data));
  if (event === "result") {
    sandboxId = data.sandboxId;
    ended = `exit code ${data.exitCode}`;
  }
  if (event === "error") ended = `${data.code}: ${data.detail}`;
}
console.log(ended);

// Whoever closes the stream ends the command, with all its children.
const enough = new AbortController();
try {
  for await (const { event } of events("exec", { sandboxId, command: "yes", timeout: 300 }, enough.signal)) {
    if (event === "stdout") enough.abort();
  }
} catch (error) {
  if (!enough.signal.aborted) throw error;
  console.log("stopped");
}
