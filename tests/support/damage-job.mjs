// Overwrites the stored row of one job in the storage that workerd left: argv[2] is the folder of the objects' storage, argv[3] the job's id.

import { readdirSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";

const [, , storage, jobId] = process.argv;
const files = readdirSync(storage, { recursive: true }).filter((name) => /JobActor\/[0-9a-f]{64}\.sqlite$/.test(name));
let damaged = 0;
for (const name of files) {
  const database = new DatabaseSync(join(storage, name));
  const has = database.prepare("SELECT count(*) AS count FROM sqlite_master WHERE name = 'job'").get().count > 0;
  const rows = has ? database.prepare("SELECT stored FROM job").all() : [];
  // As text: another one may be damaged already.
  if (rows.some((row) => row.stored.startsWith(`{"job":{"jobId":"${jobId}"`) && row.stored.length > 40)) {
    database.prepare("UPDATE job SET stored = substr(stored, 1, 40)").run();
    damaged += 1;
  }
  database.close();
}
if (damaged !== 1) throw new Error(`${damaged} objects have the job ${jobId}, among ${files.length}`);
