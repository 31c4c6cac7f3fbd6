from types import SimpleNamespace

from trainer.object_store import StoreWatch


class Raylet:
    """Answers with what is on the disk, in MiB: for want of room now, and spilled since the node started."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def GetNodeStats(self, _request, timeout):
        fallback, spilled = self.answers.pop(0)
        stats = {"object_store_bytes_fallback": fallback * 2**20, "spilled_bytes_total": spilled * 2**20}
        return SimpleNamespace(store_stats=SimpleNamespace(**stats))


def test_what_other_jobs_spilled_before_does_not_count_and_the_warning_comes_once(caplog):
    watch = StoreWatch()
    watch._raylet = Raylet((0, 50), (4, 50), (4, 53), (0, 53))
    assert [watch.metrics()["system/object_store_disk_mib"] for _ in range(4)] == [0.0, 4.0, 7.0, 3.0]
    assert [record.getMessage() for record in caplog.records] == [
        "Ray's object store is full: 4 MiB of objects are on the disk, which is slower"
    ]


def test_without_an_answer_there_is_no_metric():
    watch = StoreWatch()
    watch._raylet = object()
    assert watch.metrics() == {}
