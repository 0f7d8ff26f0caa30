// Many calls on one WebSocket: each has an id, events, and exactly one `result` or `error`.

const url = (process.env.CLOUDFLARE_OPS_URL ?? "http://127.0.0.1:8787").replace(/^http/, "ws");
const socket = new WebSocket(`${url}/ws`, ["bearer", process.env.CLOUDFLARE_OPS_KEY ?? ""]);

interface Open {
  event?: (name: string, data: any) => void;
  resolve: (result: any) => void;
  reject: (problem: any) => void;
}
const open = new Map<string, Open>();
let ready = () => {};
const isReady = new Promise<void>((resolve) => (ready = resolve));

socket.onmessage = ({ data }) => {
  const message = JSON.parse(data as string);
  const call = open.get(message.id);
  if (message.type === "ready") ready();
  if (message.type === "event") call?.event?.(message.event, message.data);
  if (message.type === "result" || message.type === "error") open.delete(message.id);
  if (message.type === "result") call?.resolve(message.result);
  if (message.type === "error") call?.reject(message.error);
};
socket.onclose = ({ code, reason }) => {
  // What was open when the connection ended may have acted: look before calling again.
  for (const { reject } of open.values()) reject({ code: "outcome_unknown", detail: `closed: ${code} ${reason}` });
};

let calls = 0;
function call(tool: string, params: object, event?: Open["event"]): { id: string; result: Promise<any> } {
  const id = String(++calls);
  const result = new Promise<any>((resolve, reject) => open.set(id, { event, resolve, reject }));
  socket.send(JSON.stringify({ type: "invoke", id, tool, params }));
  return { id, result };
}

await isReady;
const { sandboxId } = await call("exec", { command: "true" }).result;

// Three at once, in one sandbox.
const sums = [1, 2, 3].map((n) => call("exec", { sandboxId, command: `echo $((${n} * 14))` }).result);
for (const sum of await Promise.all(sums)) process.stdout.write(sum.stdout);

// A command without an end, until it is told to stop: the error says that it is gone.
const endless = call("exec", { sandboxId, command: "while :; do echo working; sleep 0.1; done", timeout: 300 }, () => {
  socket.send(JSON.stringify({ type: "cancel", id: endless.id }));
});
try {
  await endless.result;
} catch (problem: any) {
  console.log(`${problem.code}, ${problem.details.reason}`);
}

await call("destroySandbox", { sandboxId }).result;
socket.close();
