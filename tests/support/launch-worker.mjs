// Runs the built Worker in workerd, with the bindings that wrangler.toml declares, for the integration tests.
//
// What is built is taken as it is: `cargo xtask build` comes first. Miniflare rather than `wrangler dev`, because it puts
// no proxy before the Worker and never rebuilds. The three variables of the Worker come from this process's
// environment, never from argv. Prints `ready URL` once the Worker listens.
//
// Environment: TEST_PORT (0 takes a free one), TEST_STORAGE (folder that outlives this process), and
// WORKER_API_KEY_SECRET, SANDBOX_HOST_URL, SANDBOX_HOST_TOKEN, each absent when the Worker is to lack it.

import { readdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { Log, LogLevel, Miniflare, convertV4MiniflareOptions } from "miniflare";
import { unstable_getMiniflareWorkerOptions, unstable_readConfig } from "wrangler";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const configPath = join(root, "wrangler.toml");
const main = resolve(root, unstable_readConfig({ config: configPath }).main);
const { workerOptions } = unstable_getMiniflareWorkerOptions(configPath, undefined, {
  overrides: { enableContainers: false },
});
const { modulesRules: _, ...options } = workerOptions;

// A developer's own .dev.vars must not decide what a test sees.
const bindings = { ...options.bindings };
for (const name of ["WORKER_API_KEY_SECRET", "SANDBOX_HOST_URL", "SANDBOX_HOST_TOKEN"]) {
  delete bindings[name];
  if (process.env[name] !== undefined) bindings[name] = process.env[name];
}

const buildFolder = dirname(main);
const wasm = readdirSync(buildFolder).filter((name) => name.endsWith(".wasm"));
const modules = [
  { type: "ESModule", path: main },
  ...wasm.map((name) => ({ type: "CompiledWasm", path: join(buildFolder, name) })),
];

const miniflare = new Miniflare(
  convertV4MiniflareOptions({
    host: "127.0.0.1",
    port: Number(process.env.TEST_PORT ?? 0),
    cf: false,
    logRequests: false,
    log: new Log(LogLevel.WARN),
    telemetry: { enabled: false },
    resourcePersistencePath: process.env.TEST_STORAGE,
    workers: [{ ...options, name: "cloudflare-ops", bindings, modulesRoot: buildFolder, modules }],
  }),
);
console.log(`ready ${await miniflare.ready}`);
