"""Plan dumps of MindIE and other software on ATB, by msprobe's ATB dump module.

Source: msprobe 26.2, atb_data_dump_instruct.md; from CANN 8.3.RC1 on.
"""

from __future__ import annotations

from npucmp.plans import tool_configs
from npucmp.plans.plan_template import MAKE_FOLDER, SEEDED_NPU, ConfigFile, Row, Template
from npucmp.plans.request import STATISTICS, VALUES, DumpRequest, beginnings

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


def _config(request: DumpRequest) -> tool_configs.Row:
    return tool_configs.atb(request.kind, request.steps, request.ranks, request.names)


PLAN = Template(
    files=(ConfigFile(CONFIG, _config),),
    command=(Row("/usr/local/Ascend/mindie/latest/mindie-service/bin/mindieservice_daemon"),),
    exports=SEEDED_NPU,
    before=(
        MAKE_FOLDER,
        Row("MSPROBE_HOME_PATH=${{MSPROBE_HOME_PATH:-$(pip show mindstudio-probe | sed -n 's/^Location: //p')}}"),
        Row(f'source {SCRIPTS}/load_atb_probe.sh" --output="$here/dump" --config="$here/{CONFIG}"'),
    ),
    after=(Row(f'source {SCRIPTS}/unload_atb_probe.sh"'),),
    notes=(
        Row("build msprobe with --include-mod atb_probe"),
        Row("stop the service only after the folder of the dump stops growing"),
        Row("the golden run also uses ATB, on a release or device that is known to be correct", when="golden-pair"),
    ),
    unverified=("the module was not tested: it needs an Ascend device",),
)
