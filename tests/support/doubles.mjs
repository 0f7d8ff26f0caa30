// What stands around the built Worker in the integration tests: nobody keeps data points here, so they are printed; and a request may
// ask that the platform reset an object, or fail a sandbox's container in a way of which the Worker knows nothing, which cannot be brought
// about here for real.
//
// `x-test-queue: [MESSAGE, ...]`: the request is not for the Worker; its messages go into the queue of jobs. TEST_QUEUE has that queue throw
// (`throws`) or deliver nothing (`loses`).
//
// `x-test-throws: BINDING PATH COUNT [property ...]`: in this request, the first COUNT stubs of that binding throw what a reset object's
// stubs throw when they are asked for PATH, each of them for ever; the error has the properties named, each `true`. Whether a stub passes
// the request on before it throws makes no difference to what the Worker can know; here it does not.
//
// `x-test-container: SANDBOX METHOD NUMBER MILLISECONDS TEXT`: from then on, the call with that NUMBER, counted from 1, of that METHOD of the
// sandbox's `ctx.container` (of `fetch`: of its ports) fails after so many milliseconds with an error with TEXT, and every one where NUMBER
// is `*`. What fails after a time is carried out all the same. `x-test-container: SANDBOX` ends that.

import { WorkerEntrypoint } from "cloudflare:workers";
import Worker, { SandboxActor as RealSandboxActor, TenantActor as RealTenantActor } from "./index.js";

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

// By the id of a sandbox's object: what fails next.
const failures = new Map();

function fail(env, asked) {
  const [sandbox, method, number, milliseconds, ...text] = asked.split(" ");
  const object = env.SANDBOX.idFromName(`default/${sandbox}`).toString();
  if (method === undefined) failures.delete(object);
  else failures.set(object, { method, number, calls: 0, milliseconds: Number(milliseconds), text: text.join(" ") });
}

// What the real one has, but for what `replaced` makes of it.
function around(real, replaced) {
  return new Proxy({}, {
    get(_, name) {
      const value = Reflect.get(real, name, real);
      return replaced(name, typeof value === "function" ? value.bind(real) : value);
    },
  });
}

// What the runtime throws at once; everything else gives a promise.
const THROWS = ["start", "signal", "getTcpPort"];

function unreliable(container, object) {
  const of = (name, method) => (...given) => {
    const failure = failures.get(object);
    if (failure?.method !== name) return method(...given);
    failure.calls += 1;
    if (failure.number !== "*" && failure.calls !== Number(failure.number)) return method(...given);
    console.log(JSON.stringify({ failed: name, text: failure.text }));
    const error = new Error(failure.text);
    if (THROWS.includes(name)) throw error;
    if (failure.milliseconds === 0) return Promise.reject(error);
    const late = new Promise((_, reject) => setTimeout(() => reject(error), failure.milliseconds));
    return Promise.race([method(...given), late]);
  };
  const port = (real) => around(real, (name, value) => (name === "fetch" ? of(name, value) : value));
  return around(container, (name, value) => {
    if (typeof value !== "function") return value;
    if (name === "getTcpPort") return of(name, (number) => port(value(number)));
    return of(name, value);
  });
}

// The runtime calls the methods of an object's class, so that the class stays the real one.
export const SandboxActor = new Proxy(RealSandboxActor, {
  construct(actor, [state, env], target) {
    const container = state.container && unreliable(state.container, state.id.toString());
    const surrounding = container ? around(state, (name, value) => (name === "container" ? container : value)) : state;
    return Reflect.construct(actor, [surrounding, env], target);
  },
});

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
    const failing = request.headers.get("x-test-container");
    if (failing !== null) fail(this.env, failing);
    return new Worker(this.ctx, surrounded(this.env, request.headers.get("x-test-throws"))).fetch(request);
  }

  queue(batch) {
    return new Worker(this.ctx, surrounded(this.env, null)).queue(batch);
  }
}
