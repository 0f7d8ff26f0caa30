// Runs the built Worker in workerd, with the bindings that wrangler.toml declares, for the integration tests.
//
// What is built is taken as it is: `cargo xtask build` comes first. Miniflare rather than `wrangler dev`, because it puts
// no proxy before the Worker and never rebuilds. The three variables of the Worker come from this process's
// environment, never from argv. Prints `ready URL` once the Worker listens.
//
// Environment: TEST_PORT (0 takes a free one), TEST_STORAGE (folder that outlives this process), and
// WORKER_API_KEY_SECRET, SIGNING_SECRET, SANDBOX_HOST_URL, SANDBOX_HOST_TOKEN, SWEEP_SECONDS, WEBHOOK_PRIVATE_ADDRESSES, EXPORT_SECONDS, RUNNING_JOBS, BUSY_JOBS, JOB_ALARM_SECONDS, each absent when the Worker is to lack it.
// TEST_NO_BUCKET leaves out the R2 bucket. TEST_QUEUE says how the queue of jobs behaves (doubles.mjs); "absent" leaves it out.
// For sandboxes in containers also TEST_CONTAINER_IMAGE and TEST_SIDECAR_IMAGE, which must be there, TEST_DOCKER_SOCKET, and
// TEST_NAME, a name of the Worker by which its containers are found.

import { readFileSync, readdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { Log, LogLevel, Miniflare, convertV4MiniflareOptions } from "miniflare";
import { unstable_getMiniflareWorkerOptions, unstable_readConfig } from "wrangler";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const configPath = join(root, "wrangler.toml");
const main = resolve(root, unstable_readConfig({ config: configPath }).main);
// Wrangler would build the image that the configuration names; the tests name one that is built.
const { workerOptions } = unstable_getMiniflareWorkerOptions(configPath, undefined, {
  overrides: { enableContainers: false },
});
const { modulesRules: _, ...options } = workerOptions;

if (process.env.TEST_NO_BUCKET !== undefined) delete options.r2Buckets;
if (process.env.TEST_QUEUE === "absent") delete options.queueProducers;

let containerEngine;
if (process.env.TEST_CONTAINER_IMAGE !== undefined) {
  options.durableObjects.SANDBOX.container = { imageName: process.env.TEST_CONTAINER_IMAGE };
  containerEngine = {
    localDocker: {
      socketPath: process.env.TEST_DOCKER_SOCKET,
      containerEgressInterceptorImage: process.env.TEST_SIDECAR_IMAGE,
    },
  };
}

// A developer's own .dev.vars must not decide what a test sees.
const bindings = { ...options.bindings };
for (const name of ["WORKER_API_KEY_SECRET", "SIGNING_SECRET", "SANDBOX_HOST_URL", "SANDBOX_HOST_TOKEN", "SWEEP_SECONDS", "WEBHOOK_PRIVATE_ADDRESSES", "EXPORT_SECONDS", "RUNNING_JOBS", "BUSY_JOBS", "JOB_ALARM_SECONDS", "TEST_QUEUE"]) {
  delete bindings[name];
  if (process.env[name] !== undefined) bindings[name] = process.env[name];
}

const buildFolder = dirname(main);
const wasm = readdirSync(buildFolder).filter((name) => name.endsWith(".wasm"));
const doubles = readFileSync(join(root, "tests/support/doubles.mjs"), "utf8");
const modules = [
  { type: "ESModule", path: join(buildFolder, "doubles.mjs"), contents: doubles },
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
    containerEngine,
    workers: [
      { ...options, name: process.env.TEST_NAME ?? "cloudflare-ops", bindings, modulesRoot: buildFolder, modules },
    ],
  }),
);
console.log(`ready ${await miniflare.ready}`);
