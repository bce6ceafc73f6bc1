"""dev/check_layers.py names the file and line of each kind of fault, planted in a tree of its own."""
import check_layers
from testing import Case, temporary_folder, write_files

SOUND = {
    "base/check.h": "void check(int x);\n",
    "base/check.cpp": '#include "base/check.h"\nvoid check(int x) {\n}\n',
    "runtime/simt.h": '#include "base/check.h"\n#if defined(__CUDACC__)\ncudaError_t e;\n#endif\n',
    "kernels/gelu.h": "void gelu_forward(float* out, int n);\n",
    "kernels/gelu.cu": '#include "kernels/gelu.h"\n#include "runtime/simt.h"\n'
                       "__global__ void gelu_kernel(float* out) {\n    wait_for_earlier_kernels();\n}\n"
                       "void gelu_forward(float* out, int n) {\n}\n",
    "model/param_table.h": '#include "kernels/gelu.h"\n',
    "optim/adamw.cpp": '#include "model/param_table.h"\n',
}


class CheckLayers(Case):
    def check(self, files):
        """Returns the exit status and the output for the sound tree with these files added or replaced."""
        folder = temporary_folder(self.addCleanup)
        write_files(folder, SOUND | files)
        result = self.run_script("check_layers.py", folder, expect=None)
        return result.returncode, result.stdout.strip()

    def test_a_sound_tree_is_clean(self):
        self.assertEqual(self.check({}), (0, "layers: clean"))

    def test_every_planted_fault_is_named(self):
        wide = "x" * 121
        for files, fault in [
            ({"base/text.h": '#include "runtime/simt.h"\n'},
             "base/text.h:1: includes runtime/simt.h; base/ may include nothing only"),
            ({"kernels/relu.cu": '#include "runtime/simt.h"\n#include "model/param_table.h"\n'},
             "kernels/relu.cu:2: includes model/param_table.h; kernels/ may include base runtime only"),
            ({"model/head.h": "", "optim/lion.cpp": '#include "model/head.h"\n'},
             "optim/lion.cpp:1: includes model/head.h; of model/, optim/ may include "
             "param_table param_layout param_store model only"),
            ({"gpusim/run.cpp": '#include "gpusim/test/a.h"\n', "gpusim/test/a.h": '#include "test/support/skip.h"\n'},
             "gpusim/run.cpp:1: includes gpusim/test/a.h; gpusim/ may include base cpu only"),
            ({"train/loop.cpp": "// by cudaMemcpy\n"},
             "train/loop.cpp:1: names a backend outside runtime/, cpu/ and gpusim/: // by cudaMemcpy"),
            ({"kernels/relu.cu": "#ifdef X\n#elif defined(TEON_CUDA)\n#endif\n"},
             "kernels/relu.cu:2: has a condition on the backend outside runtime/, cpu/ and gpusim/: "
             "#elif defined(TEON_CUDA)"),
            ({"kernels/relu.cu": "\n__global__ void relu_kernel(float* out) {\n    out[0] = 0;\n}\n"},
             "kernels/relu.cu:2: a kernel that does not begin with wait_for_earlier_kernels()"),
            ({"cpu/a.h": '#include "cpu/b.h"\n', "cpu/b.h": "",
              "cpu/b.cpp": '#include "cpu/b.h"\n#include "cpu/a.h"\n'},
             "cpu/b.cpp:2: an include cycle: cpu/a -> cpu/b -> cpu/a"),
            ({"cpu/a.h": "\nint f(int x,\n      int y);\n", "cpu/b.cpp": "int f(int x, int y) {\n}\n"},
             "cpu/a.h:2: declares f(), which cpu/b.cpp defines"),
            ({"base/text.cpp": '#include <fmt/format.h>\n\nauto a = fmt::join(b, ", ");\n'},
             "base/text.cpp:3: fmt::join without <fmt/ranges.h>"),
            ({"scripts/a.sh": f"\n# {wide[2:]}\n"}, "scripts/a.sh:2: 121 columns; at most 120"),
        ]:
            with self.subTest(fault=fault):
                self.assertEqual(self.check(files), (1, fault))

    def test_the_table_names_only_earlier_rows(self):
        rows = list(check_layers.ORDER)
        for i, row in enumerate(rows[:-1]):  # bench/ also includes tests
            self.assertLessEqual(set(check_layers.ORDER[row].split()), set(rows[:i]), row)
