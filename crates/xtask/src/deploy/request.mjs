// One HTTP request, read as JSON from standard input (where a key may be, and nobody else sees it) and answered as JSON on
// standard output. Node brings TLS with it, so that xtask needs none of its own.
let text = "";
for await (const chunk of process.stdin) text += chunk;
const { url, method, headers, body, timeoutMs } = JSON.parse(text);
let answer;
try {
  const response = await fetch(url, { method, headers, body, redirect: "manual", signal: AbortSignal.timeout(timeoutMs) });
  answer = { status: response.status, body: (await response.text()).slice(0, 65536) };
} catch (error) {
  answer = { error: `${error.message}${error.cause ? ` (${error.cause.message})` : ""}` };
}
console.log(JSON.stringify(answer));
