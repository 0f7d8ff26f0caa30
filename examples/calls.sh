#!/usr/bin/env bash
# The REST door with curl. Every tool is a POST to /v1/tools/{tool}; some have routes of their own besides.
set -euo pipefail
: "${CLOUDFLARE_OPS_URL:?the address of the service}" "${CLOUDFLARE_OPS_KEY:?a key}"

# The key is handed over by a file descriptor: arguments can be read by every process of a machine.
ops() {
  curl --silent --show-error --fail-with-body \
    --config <(printf 'header = "Authorization: Bearer %s"\n' "$CLOUDFLARE_OPS_KEY") "$@"
}

sandbox="example-$RANDOM$RANDOM"
ops "$CLOUDFLARE_OPS_URL/v1/sandboxes" --data "{\"id\": \"$sandbox\"}" > /dev/null
trap 'ops -X DELETE "$CLOUDFLARE_OPS_URL/v1/sandboxes/$sandbox" > /dev/null' EXIT

echo "A command, and its exit code:"
ops "$CLOUDFLARE_OPS_URL/v1/tools/exec" --data "{\"sandboxId\": \"$sandbox\", \"command\": \"echo hello; exit 3\"}"

echo; echo "Its output as it comes:"
ops --no-buffer "$CLOUDFLARE_OPS_URL/v1/tools/exec" --header "Accept: text/event-stream" \
  --data "{\"sandboxId\": \"$sandbox\", \"command\": \"for i in 1 2; do echo \$i; sleep 0.3; done\"}"

echo "A file there and back:"
file=$(mktemp)
printf 'from here\n' > "$file"
ops --upload-file "$file" "$CLOUDFLARE_OPS_URL/v1/sandboxes/$sandbox/files/notes/a.txt" > /dev/null
ops "$CLOUDFLARE_OPS_URL/v1/sandboxes/$sandbox/files/notes/a.txt"
rm "$file"

echo "A job, which goes on without its caller:"
location=$(ops --output /dev/null --dump-header - "$CLOUDFLARE_OPS_URL/v1/tools/exec" --header "Prefer: respond-async" \
  --data "{\"sandboxId\": \"$sandbox\", \"command\": \"sleep 1; echo done\", \"timeout\": 600}" |
  tr -d '\r' | sed -n 's/^location: //Ip')
ops --no-buffer "$CLOUDFLARE_OPS_URL$location/logs?follow=true" --header "Accept: text/event-stream"
ops "$CLOUDFLARE_OPS_URL$location"
echo
