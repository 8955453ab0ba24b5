"""What happens inside of the webhook's pod: it starts with the chart's command, and an API server asks it.

Run by test_on_a_read_only_system.py, in a sandbox that has a pod's limits; prints the answer as JSON.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 300.0


def main(given: dict[str, Any]) -> dict[str, Any]:
    trust = ssl.create_default_context(cafile=given["certificate"])
    trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as Go does: a certificate that is trusted needs no other
    with subprocess.Popen(given["command"], stdout=subprocess.DEVNULL) as hook:
        try:
            until_ready(hook, trust, given)  # as the kubelet, which shows no certificate
            trust.load_cert_chain(*given["shown"])
            status, body = ask(trust, given, "POST", "/validate", json.dumps(given["review"]))
        finally:
            hook.terminate()
    return {"status": status, "response": json.loads(body)["response"], "ended": hook.returncode}


def until_ready(hook: subprocess.Popen[bytes], trust: ssl.SSLContext, given: dict[str, Any]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while hook.poll() is None and time.monotonic() < end:
        try:
            if ask(trust, given, "GET", given["ready"])[0] == 200:
                return
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit(f"the hook does not open: {hook.returncode}")


def ask(trust: ssl.SSLContext, given: dict[str, Any], *request: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(given["name"])
    # The name is the Service's, which nobody resolves here.
    plain = socket.create_connection(("127.0.0.1", given["port"]), timeout=300)
    connection.sock = trust.wrap_socket(plain, server_hostname=given["name"])
    try:
        connection.request(*request, headers={"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
