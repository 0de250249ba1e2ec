"""What is made of a record once and kept with it."""

from npucmp.model import Finding, Measurement, Pair, Verdict
from npucmp.model.kept import kept


def test_a_function_of_a_record_is_called_once_for_each_and_anew_for_a_changed_copy():
    called = []

    @kept
    def words(finding):
        called.append(finding)
        return f"{finding.verdict.value} {finding.working:g}"

    @kept
    def nothing(finding):
        called.append(finding)

    one = Finding(Measurement(Pair(0, "output:0", None, None, None, None)), Verdict.MATCH, "")
    other = one._replace(working=0.5)
    assert [words(one), words(one), words(other), words(one)] == ["match 0", "match 0", "match 0.5", "match 0"]
    assert len(called) == 2 and called[0] is one and called[1] is other
    assert nothing(one) is None and nothing(one) is None and len(called) == 3
    assert one == one._replace(), "what is kept is no part of the record"
