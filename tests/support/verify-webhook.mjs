// Prints whether the library of Standard Webhooks takes the message on standard input: {secret, headers, body}.

import { readFileSync } from "node:fs";
import { Webhook, WebhookVerificationError } from "standardwebhooks";

const { secret, headers, body } = JSON.parse(readFileSync(0, "utf8"));
try {
  new Webhook(secret).verify(body, headers);
  console.log("taken");
} catch (error) {
  if (!(error instanceof WebhookVerificationError)) throw error;
  console.log("refused");
}
