"""A counter of requests is declared once: sums, documents, tables and Prometheus have it."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import sys, types, json
from importlib.util import find_spec, module_from_spec

spec = find_spec("trtla.runtime.stats")
source, field = open(spec.origin).read(), "    reused_tokens: int = counter("
new = '    guessed: int = counter("Tokens guessed.", "guessed_tokens")\\n'
assert field in source
module = sys.modules[spec.name] = module_from_spec(spec)
exec(compile(source.replace(field, new + field), spec.origin, "exec"), module.__dict__)

from trtla.cli.run.transcript import COLUMNS
from trtla.results.documents import RunTotals
from trtla.results.metrics import Metrics, add

one = Metrics(outputs=((1, 2),), time_s=1.0, steps=1, guessed=2)
both = add([one, one])
found = {"run": RunTotals.fill(both).document(), "api": both.reported("api"), "table": COLUMNS}
try:
    from trtla.serve.metrics import ServerMetrics as Served
except ImportError:  # an extra
    pass
else:
    served = Served()
    served._finish(module.RequestStats(guessed=3))
    found["served"] = served.text(None).decode()
print(json.dumps(found))
"""


def test_a_counter_is_its_field() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["run"]["guessed"] == found["api"]["guessed"] == 4
    assert "guessed" in found["table"]
    assert "trtla_guessed_tokens_total 3.0" in found.get("served", "trtla_guessed_tokens_total 3.0")
