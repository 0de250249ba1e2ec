"""Statistics of tensors that are read side by side: one that cannot be read costs no other."""

import numpy as np

from npucmp.measure.tensor_stats import StatsTask, figures_of, work_through
from npucmp.model import TensorRef


def saved(folder, name, values):
    file = folder / f"{name}.npy"
    np.save(file, np.asarray(values, np.float32))
    return TensorRef("input:0", "float32", np.shape(values), str(file), "npy")


def test_tensors_of_several_shapes_and_files_that_end_early(tmp_path):
    small, large = saved(tmp_path, "small", [1.0, 2.0]), saved(tmp_path, "large", [[3.0, 4.0], [5.0, -6.0]])
    broken = saved(tmp_path, "broken", np.ones(5000))
    with open(broken.file, "r+b") as file:
        file.truncate(1000)
    for tensors in ((small, large), (large, small, broken), (broken, small), (small._replace(problem="odd"), large)):
        found = figures_of(StatsTask(tensors))
        assert found.bytes_read == sum(16 if one is large else 8 if one is small else 0 for one in tensors)
        assert len(found.figures) == len(tensors) and not found.found
        for one, figures in zip(tensors, found.figures):
            assert bool(figures.problem) is (one is broken or one.problem == "odd")
            assert one is not small or (figures.minimum, figures.maximum, figures.mean) == (1.0, 2.0, 1.5)
            assert one is not large or (figures.minimum, figures.maximum, figures.largest) == (-6.0, 5.0, 6.0)
        assert [one.figures for one in work_through([StatsTask(tensors)])] == [found.figures]
    assert figures_of(StatsTask((broken,))).figures[0].problem and not figures_of(StatsTask(())).figures
