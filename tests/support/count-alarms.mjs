// Prints how many objects have an alarm, as workerd keeps it: argv[2] is the `metadata.sqlite` of their class.

import { DatabaseSync } from "node:sqlite";

const database = new DatabaseSync(process.argv[2], { readOnly: true });
console.log(database.prepare("SELECT count(*) AS count FROM _cf_ALARM").get().count);
