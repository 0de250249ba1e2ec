"""Plan dumps of MindIE and other software on ATB, by msprobe's ATB dump module.

Source: msprobe 26.2, atb_data_dump_instruct.md; from CANN 8.3.RC1 on.
"""

from __future__ import annotations

from npucmp.dump_plan import tool_configs
from npucmp.dump_plan.request import STATISTICS, VALUES, DumpRequest, Prepared, beginnings, seeded

NAME = "mindie"
ABOUT = "MindIE (ATB) by msprobe's ATB dump module"
SOURCE = "msprobe 26.2: atb_data_dump_instruct.md; CANN 8.3.RC1 and newer"
FORMAT = "atb"
KINDS = REFERENCE = (VALUES, STATISTICS)
REFUSED = {
    "fusion-diff": "no switch disables the fused operators of ATB: use compare with another release",
    "replay": "replay does not support operators of ATB: use compare or overflow",
}
SERVES = True
CONFIG = "config.json"
SCRIPTS = '"$MSPROBE_HOME_PATH/msprobe/scripts/atb'

named = beginnings


def prepare(asked: DumpRequest) -> Prepared:
    """Return config.json, and the commands that load and unload the module around the run."""
    config = tool_configs.atb(asked.kind, asked.steps, asked.ranks, asked.names)
    home = "MSPROBE_HOME_PATH=${MSPROBE_HOME_PATH:-$(pip show mindstudio-probe | sed -n 's/^Location: //p')}"
    golden = ("the golden run also uses ATB, on a release or device that is known to be correct",)
    return Prepared(
        files={CONFIG: tool_configs.text_of(config)},
        command="/usr/local/Ascend/mindie/latest/mindie-service/bin/mindieservice_daemon",
        exports=seeded(asked, on_npu=True),
        before=(
            'mkdir -p "$here/dump"',
            home,
            f'source {SCRIPTS}/load_atb_probe.sh" --output="$here/dump" --config="$here/{CONFIG}"',
        ),
        after=(f'source {SCRIPTS}/unload_atb_probe.sh"',),
        notes=(
            "build msprobe with --include-mod atb_probe",
            "stop the service only after the folder of the dump stops growing",
            *(golden if asked.question.second == "golden" else ()),
        ),
        unverified=("the module was not tested: it needs an Ascend device",),
    )
