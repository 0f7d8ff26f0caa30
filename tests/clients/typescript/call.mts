// Calls the Worker through the types that are generated from its API description. Compiled under `strict`: a field that
// the description lacks or names otherwise is a compile error here.

import type { paths } from "./openapi.js";

declare const process: { env: Record<string, string | undefined> };

type Post<Path extends keyof paths> = paths[Path] extends { post: infer Operation } ? Operation : never;
type Input<Operation> = Operation extends { requestBody: { content: { "application/json": infer Body } } } ? Body : never;
type Output<Operation> = Operation extends { responses: { 200: { content: { "application/json": infer Body } } } }
  ? Body
  : never;
// A call without `dryRun: true` is never answered with what it would do.
type Done<Operation> = Exclude<Output<Operation>, { dryRun: boolean }>;
type Problem = Post<"/v1/tools/exec"> extends {
  responses: { 400: { content: { "application/problem+json": infer Body } } };
}
  ? Body
  : never;

async function post(path: keyof paths, body: unknown): Promise<Response> {
  return fetch(`${process.env.TEST_URL}${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${process.env.TEST_KEY}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
}

const input: Input<Post<"/v1/tools/exec">> = { command: "print(6 * 7)", language: "python", timeout: 30 };
const output = (await (await post("/v1/tools/exec", input)).json()) as Done<Post<"/v1/tools/exec">>;
const exitCode: number = output.exitCode;
const stdout: string = output.stdout;

const target: Input<Post<"/v1/tools/destroySandbox">> = { sandboxId: output.sandboxId };
const answer = await post("/v1/tools/destroySandbox", target);
const destroyed = (await answer.json()) as Done<Post<"/v1/tools/destroySandbox">>;

// @ts-expect-error: the description says that `command` is a string.
const wrong: Input<Post<"/v1/tools/exec">> = { command: 5 };
const problem = (await (await post("/v1/tools/exec", wrong)).json()) as Problem;

console.log(`exit ${exitCode}, stdout ${stdout.trim()}, then ${destroyed.status}; wrong input: ${problem.code}`);
