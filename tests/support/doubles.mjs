// What stands around the built Worker in the integration tests: nobody keeps data points here, so they are printed; and a request may
// ask that the platform reset an object, which cannot be brought about here for real.
//
// `x-test-queue: [MESSAGE, ...]`: the request is not for the Worker; its messages go into the queue of jobs. TEST_QUEUE has that queue throw
// (`throws`) or deliver nothing (`loses`).
//
// `x-test-throws: BINDING PATH COUNT [property ...]`: in this request, the first COUNT stubs of that binding throw what a reset object's
// stubs throw when they are asked for PATH, each of them for ever; the error has the properties named, each `true`. Whether a stub passes
// the request on before it throws makes no difference to what the Worker can know; here it does not.

import { WorkerEntrypoint } from "cloudflare:workers";
import Worker, { TenantActor as RealTenantActor } from "./index.js";

export * from "./index.js";

// The bindings of the Worker look at the name of a binding's class.
class AnalyticsEngineDataset {
  writeDataPoint(point) {
    console.log(JSON.stringify({ dataPoint: point }));
  }
}

// The queue of jobs, as it is for the objects that send to it.
class WorkerQueue {
  constructor(kind) {
    this.kind = kind;
  }

  async send(message) {
    console.log(JSON.stringify({ queued: message, kind: this.kind }));
    if (this.kind === "throws") throw new Error("Queue is overloaded. Please back off.");
  }
}

export const TenantActor = new Proxy(RealTenantActor, {
  construct(target, [state, env], newTarget) {
    const kind = env.TEST_QUEUE;
    const around = kind === "throws" || kind === "loses" ? { ...env, JOB_QUEUE: new WorkerQueue(kind) } : env;
    return Reflect.construct(target, [state, around], newTarget);
  },
});

class DurableObjectNamespace {
  constructor(real, fault) {
    this.real = real;
    this.fault = fault;
  }

  getByName(name) {
    const [stub, fault] = [this.real.getByName(name), this.fault];
    let broken = false;
    return {
      async fetch(url, init) {
        if (!broken && fault.left > 0 && new URL(url).pathname.startsWith(fault.path)) {
          fault.left -= 1;
          broken = true;
        }
        if (!broken) return stub.fetch(url, init);
        console.log(JSON.stringify({ thrown: fault.path, left: fault.left }));
        const error = new Error("Durable Object reset because its code was updated.");
        for (const property of fault.properties) error[property] = true;
        throw error;
      },
    };
  }
}

function surrounded(env, asked) {
  const around = { ...env, ANALYTICS: new AnalyticsEngineDataset() };
  if (asked !== null) {
    const [binding, path, count, ...properties] = asked.split(" ");
    around[binding] = new DurableObjectNamespace(env[binding], { path, left: Number(count), properties });
  }
  return around;
}

export default class extends WorkerEntrypoint {
  async fetch(request) {
    const messages = request.headers.get("x-test-queue");
    if (messages !== null) {
      await this.env.JOB_QUEUE.sendBatch(JSON.parse(messages).map((body) => ({ body, contentType: "json" })));
      return new Response(null, { status: 204 });
    }
    return new Worker(this.ctx, surrounded(this.env, request.headers.get("x-test-throws"))).fetch(request);
  }

  queue(batch) {
    return new Worker(this.ctx, surrounded(this.env, null)).queue(batch);
  }
}
