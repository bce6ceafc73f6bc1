"""dev/find_cuda.sh, with imitations of compilers, GPUs and pip's folders."""
import shlex

from testing import DEV, Case, write_program


class FindCuda(Case):
    def program(self, path, text):
        return write_program(self.folder / path, f"#!/bin/bash\n{text}\n")

    def nvcc(self, release, path="toolkit/bin/nvcc"):
        return self.program(path, f"echo 'Cuda compilation tools, release {release}, V{release}.1'")

    def gpu(self, name, capability):
        self.program("bin/nvidia-smi", f'[ "$1" = -L ] && exit; echo "{name}, {capability}"')

    def find(self, what, **environment):
        result = self.call(DEV / "find_cuda.sh", what, expect=None, env={
            "PATH": f"{self.folder}/bin:/usr/bin:/bin", "CUDA_HOME": self.folder / "toolkit",
            "PCI_DEVICES": self.folder / "pci", "USUAL_CUDA": self.folder / "usual", **environment})
        return result.returncode, result.stdout.strip(), result.stderr.strip()

    def test_a_supported_gpu_and_compiler_are_used(self):
        self.nvcc("12.4")
        self.gpu("NVIDIA A100-SXM4-80GB", "8.0")
        self.assertEqual(self.find("backend"), (0, "cuda", ""))
        self.assertEqual(self.find("nvcc")[1], str(self.folder / "toolkit/bin/nvcc"))

    def test_an_old_compiler_is_refused_by_name(self):
        self.nvcc("11.8")
        self.gpu("NVIDIA A100-SXM4-80GB", "8.0")
        status, out, error = self.find("backend")
        self.assertEqual((status, out), (0, "cpu"))
        self.assertIn("is CUDA 11.8: 12.0 or later is needed; building for the CPU (make BACKEND=cuda", error)
        status, _, error = self.find("nvcc")
        self.assertEqual(status, 1)
        self.assertIn("is CUDA 11.8", error)

    def test_an_old_gpu_is_refused_by_name(self):
        self.nvcc("12.4")
        self.gpu("Tesla T4", "7.5")
        status, out, error = self.find("backend")
        self.assertEqual((status, out), (0, "cpu"))
        self.assertIn("the Tesla T4 here has compute capability 7.5: 8.0 (A100) or later is needed", error)
        self.assertEqual(self.find("arch")[0], 1)

    def test_a_driver_that_does_not_work_is_named(self):
        self.nvcc("12.4")
        self.assertEqual(self.find("backend"), (0, "cpu", ""))  # no sign of a GPU
        self.program("bin/nvidia-smi", 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18')
        status, out, error = self.find("backend")
        self.assertEqual((status, out), (0, "cpu"))
        self.assertEqual(error, "find_cuda: the NVIDIA driver does not work (nvidia-smi: Failed to initialize NVML: "
                                "Driver/library version mismatch); building for the CPU (make BACKEND=cuda builds for "
                                "GPUs)")

    def test_a_gpu_on_the_bus_without_driver_or_compiler_is_named(self):
        device = self.folder / "pci" / "0000:01:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        self.nvcc("12.4")
        self.assertIn("the NVIDIA driver does not work;", self.find("backend", PCI_DEVICES=self.folder / "pci")[2])
        here = {"CUDA_HOME": self.folder / "nowhere", "PCI_DEVICES": self.folder / "pci"}
        self.assertIn("an NVIDIA GPU is here, but no nvcc: ", self.find("backend", **here)[2])
        (device / "class").write_text("0x040300\n")  # its sound
        self.assertEqual(self.find("backend", **here), (0, "cpu", ""))

    def test_an_error_of_nvidia_smi_is_not_taken_for_a_gpu(self):
        self.nvcc("12.4")
        for text in ("No devices were found", "NVIDIA-SMI has failed because it couldn't communicate with the driver"):
            self.program("bin/nvidia-smi", f'[ "$1" = -L ] && exit 9; echo "{text}"; exit 9')
            status, out, error = self.find("arch")
            self.assertEqual((status, error), (0, ""))
            self.assertIn("arch=compute_80", out)
            self.assertIn("arch=compute_90a", out)

    def test_layouts_of_pip_packages(self):
        for layout in ("cu13", "cuda_nvcc"):
            with self.subTest(layout):
                site = self.folder / layout / "site-packages"
                nvcc = self.nvcc("13.0", f"{layout}/site-packages/nvidia/{layout}/bin/nvcc")
                status, out, error = self.find("nvcc", CUDA_HOME="/nowhere", PYTHONPATH=str(site), PATH="/usr/bin:/bin")
                self.assertEqual((status, out, error), (0, str(nvcc), ""))

    def test_a_compiler_that_does_not_run_is_refused(self):
        self.program("toolkit/bin/nvcc", "exit 127")
        self.gpu("NVIDIA A100-SXM4-80GB", "8.0")
        status, out, error = self.find("backend")
        self.assertEqual((status, out), (0, "cpu"))
        self.assertRegex(error, "^find_cuda: .*/nvcc --version does not print CUDA's release; building for the CPU .*$")

    def test_paths_with_blanks_are_words_of_a_command(self):
        toolkit = self.folder / "my toolkit"
        self.nvcc("12.4", "my toolkit/bin/nvcc")
        for name in ("include/cuda_runtime.h", "include/crt/host_config.h", "include/cublasLt.h",
                     "include/cusolverDn.h", "lib64/libcublasLt.so.12", "lib64/libcusolver.so", "lib64/libcudart.so"):
            (toolkit / name).parent.mkdir(parents=True, exist_ok=True)
            (toolkit / name).touch()
        found = {what: shlex.split(self.find(what, CUDA_HOME=toolkit)[1]) for what in ("nvcc", "include", "libs")}
        self.assertEqual(found["nvcc"], [str(toolkit / "bin/nvcc")])
        self.assertEqual(found["include"][:2], ["-isystem", str(toolkit / "include")])
        self.assertEqual(found["libs"][:3],
                         [f"-L{toolkit}/lib64", f"-Wl,-rpath,{toolkit}/lib64", "-l:libcublasLt.so.12"])

    def test_cuda_12_packages_have_a_folder_each(self):
        site = self.folder / "site-packages"
        self.nvcc("12.8", "site-packages/nvidia/cuda_nvcc/bin/nvcc")
        for package, headers in {"cuda_nvcc": ["crt/host_config.h"], "cuda_runtime": ["cuda_runtime.h"],
                                 "cublas": ["cublasLt.h"], "cusolver": ["cusolverDn.h"], "nccl": ["nccl.h"]}.items():
            for header in headers:
                file = site / "nvidia" / package / "include" / header
                file.parent.mkdir(parents=True)
                file.touch()
        status, out, _ = self.find("include", CUDA_HOME=str(site / "nvidia/cuda_nvcc"), PYTHONPATH=str(site))
        self.assertEqual(status, 0)
        for package in ("cuda_nvcc", "cuda_runtime", "cublas", "cusolver", "nccl"):
            self.assertIn(f"-isystem {site}/nvidia/{package}/include", out)
