"""Calls the Worker through the package that is generated from its API description."""

import os

from cloudflare_ops_client import AuthenticatedClient
from cloudflare_ops_client.api.tools import destroy_sandbox, exec_
from cloudflare_ops_client.models import DestroySandboxInput, ExecInput, ExecInputLanguage, ExecOutput, Problem

client = AuthenticatedClient(base_url=os.environ["TEST_URL"], token=os.environ["TEST_KEY"])

code = ExecInput(command="print(6 * 7)", language=ExecInputLanguage.PYTHON, timeout=30)
output = exec_.sync(client=client, body=code)
assert isinstance(output, ExecOutput), output

destroyed = destroy_sandbox.sync(client=client, body=DestroySandboxInput(sandbox_id=output.sandbox_id))
assert destroyed is not None and not isinstance(destroyed, Problem), destroyed

gone = exec_.sync(client=client, body=ExecInput(command="true", sandbox_id=output.sandbox_id))
assert isinstance(gone, Problem), gone

print(
    f"exit {output.exit_code}, stdout {output.stdout.strip()}, then {destroyed.status.value}; "
    f"wrong sandbox: {gone.code.value}"
)
