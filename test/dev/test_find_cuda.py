"""dev/find_cuda.sh, with imitations of compilers, GPUs and pip's folders."""
import shlex
import shutil

from testing import DEV, Case, write_program


class FindCuda(Case):
    def program(self, path, text):
        return write_program(self.folder / path, f"#!/bin/bash\n{text}\n")

    def nvcc(self, release, path="toolkit/bin/nvcc"):
        return self.program(path, f"echo 'Cuda compilation tools, release {release}, V{release}.1'")

    def gpu(self, name, capability):
        self.program("bin/nvidia-smi", f'[ "$1" = -L ] && exit; echo "{name}, {capability}"')

    def picky_nvcc(self, release, newest_gcc, says="", knows="80 90"):
        """Imitates an nvcc that refuses C++ compilers newer than newest_gcc as crt/host_config.h does, otherwise says
        `says` and fails, if it is given. It writes its runs to `calls`."""
        self.nvcc(release)
        return self.program("toolkit/bin/nvcc", f"""
            case "$1" in
            --version) echo 'Cuda compilation tools, release {release}, V{release}.1'; exit ;;
            --list-gpu-arch) printf 'compute_%s\\n' {knows}; exit ;;
            esac
            echo "$*" >>{self.folder}/calls
            [ "$1" = -ccbin ] && [ "$($2 -dumpversion)" -le {newest_gcc} ] || {{
                echo "host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than" \
                    "{newest_gcc} are not supported! The nvcc flag '-allow-unsupported-compiler' can be used"
                exit 1
            }}
            [ -z '{says}' ] || {{ echo '{says}'; exit 1; }}""")

    def compilers(self, *names, glibc="2.36"):
        """g++ and others, of the version in their names; g++ is 14. Only these are on the PATH (`alone`)."""
        for name in names:
            version = name.partition("-")[2] or "14"
            self.program(f"alone/{name}", f'[ "$1" = -dumpversion ] && echo {version} || echo "g++ {version}.1"')
        self.program("alone/getconf", f"echo glibc {glibc}")
        for tool in ("bash", "awk", "basename", "cat", "cut", "dirname", "env", "grep", "head", "mkdir", "mktemp",
                     "python3", "readlink", "rm", "sed", "sort", "tail", "tr", "uname"):
            (self.folder / "alone" / tool).symlink_to(shutil.which(tool))
        return {"PATH": f"{self.folder}/bin:{self.folder}/alone"}

    def runs(self):
        """The C++ compilers that nvcc was run with since the last call."""
        calls = self.folder / "calls"
        text = calls.read_text() if calls.exists() else ""
        calls.write_text("")
        return [line.split()[1] for line in text.splitlines()]

    def find(self, what, **environment):
        result = self.call(DEV / "find_cuda.sh", what, expect=None, env={
            "PATH": f"{self.folder}/bin:/usr/bin:/bin", "CUDA_HOME": self.folder / "toolkit",
            "PCI_DEVICES": self.folder / "pci", "USUAL_CUDA": self.folder / "usual",
            "NVCC_WORKS": self.folder / "build" / "nvcc_works", **environment})
        return result.returncode, result.stdout.strip(), result.stderr.strip()

    def test_a_supported_gpu_and_compiler_are_used(self):
        self.nvcc("12.4")
        self.gpu("NVIDIA A100-SXM4-80GB", "8.0")
        self.assertEqual(self.find("backend"), (0, "cuda", ""))
        self.assertEqual(self.find("nvcc")[1], str(self.folder / "toolkit/bin/nvcc"))

    def test_the_newest_permitted_compiler_is_chosen_and_kept(self):
        nvcc = self.picky_nvcc("12.4", 13)
        path = self.compilers("g++", "g++-11", "g++-12", "g++-13", "g++-14")
        self.assertEqual(self.find("nvcc", **path), (0, f"{nvcc} -ccbin g++-13", ""))
        self.assertEqual(self.runs(), ["g++", "g++-13"])
        self.assertEqual(self.find("cxx", **path), (0, "g++-13", ""))
        self.assertEqual(self.find("nvcc", **path)[1], f"{nvcc} -ccbin g++-13")
        self.assertEqual(self.runs(), [])
        (self.folder / "alone/g++-13").unlink()
        self.assertEqual(self.find("cxx", **path), (0, "g++-12", ""))
        self.picky_nvcc("12.8", 14)
        self.assertEqual(self.find("nvcc", **path), (0, str(nvcc), ""))
        self.assertEqual(self.runs(), ["g++", "g++-12", "g++"])
        self.assertEqual(self.find("cxx", **path), (0, "g++", ""))

    def test_the_users_compiler_is_nvccs(self):
        nvcc = self.picky_nvcc("12.4", 13)
        path = self.compilers("g++", "g++-12", "g++-13")
        self.assertEqual(self.find("nvcc", CXX="ccache g++-12", **path), (0, f"{nvcc} -ccbin g++-12", ""))
        self.assertEqual(self.find("nvcc", CXX="ccache g++", **path),
                         (1, "", "find_cuda: CUDA 12.4 permits g++ up to 13, and g++ is 14: make CXX=g++-13"))

    def test_a_compiler_that_is_too_new_is_named(self):
        self.picky_nvcc("12.4", 13)
        self.gpu("NVIDIA A100-SXM4-80GB", "8.0")
        path = self.compilers("g++")
        why = "find_cuda: CUDA 12.4 permits g++ up to 13, and g++ is 14: install g++-13, or a newer CUDA"
        self.assertEqual(self.find("nvcc", **path), (1, "", why))
        self.assertEqual(self.find("backend", **path),
                         (0, "cpu", why + "; building for the CPU (make BACKEND=cuda builds for GPUs)"))

    def test_a_glibc_that_cuda_12_does_not_compile_with_is_named(self):
        # An error as nvcc 12.4 gives it on Debian 13.
        self.picky_nvcc("12.4", 13, "math_functions.h(2556): error: exception specification is incompatible with that "
                                    "of previous function \"cospi\"")
        why = (1, "", "find_cuda: CUDA 12.4 compiles nothing with this system's glibc 2.41: CUDA 13.0 or later is "
                      "needed")
        path = self.compilers("g++", "g++-13", glibc="2.41")
        self.assertEqual(self.find("nvcc", **path), why)
        (self.folder / "alone/g++-13").unlink()  # installing it would not help
        self.assertEqual(self.find("nvcc", **path), why)
        self.picky_nvcc("13.0", 13)
        self.assertIn("permits g++ up to 13", self.find("nvcc", **path)[2])

    def test_another_error_of_nvcc_is_said(self):
        nvcc = self.picky_nvcc("12.4", 14, "nvcc fatal   : error: no space left")
        self.assertEqual(self.find("nvcc", **self.compilers("g++")), (
            1, "", f"find_cuda: {nvcc} with g++ does not compile an empty kernel: nvcc fatal   : error: no space left"))

    def test_a_gpu_that_the_toolkit_does_not_know_is_named(self):
        self.picky_nvcc("12.4", 99)
        for name, capability, needed in (("NVIDIA GeForce RTX 5090", "12.0", "CUDA 12.8 or later"),
                                         ("NVIDIA B200", "10.0", "CUDA 12.8 or later"),
                                         ("NVIDIA B300", "10.3", "CUDA 12.9 or later"),
                                         ("NVIDIA GB10", "12.1", "CUDA 12.9 or later"), ("X", "20.0", "a newer CUDA")):
            with self.subTest(name):
                self.gpu(name, capability)
                why = (f"find_cuda: CUDA 12.4 does not know the {name} here (compute capability {capability}): "
                       f"{needed} is needed")
                self.assertEqual(self.find("arch"), (1, "", why))
                status, out, error = self.find("backend")
                self.assertEqual((status, out), (0, "cpu"))
                self.assertIn(why + "; building for the CPU", error)
        self.picky_nvcc("12.8", 99, knows="80 90 100 120")
        self.gpu("NVIDIA B200", "10.0")
        self.assertEqual(self.find("arch")[0], 0)
        self.assertEqual(self.find("backend"), (0, "cuda", ""))

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

    def test_the_compiler_of_pip_packages(self):
        nvcc = self.nvcc("13.0", "site-packages/nvidia/cu13/bin/nvcc")
        status, out, error = self.find("nvcc", CUDA_HOME="/nowhere", PYTHONPATH=str(self.folder / "site-packages"),
                                       PATH="/usr/bin:/bin")
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
        self.nvcc("12.8")
        for package, headers in {"cuda_nvcc": ["crt/host_config.h"], "cuda_runtime": ["cuda_runtime.h"],
                                 "cublas": ["cublasLt.h"], "cusolver": ["cusolverDn.h"], "nccl": ["nccl.h"]}.items():
            for header in headers:
                file = site / "nvidia" / package / "include" / header
                file.parent.mkdir(parents=True)
                file.touch()
        status, out, _ = self.find("include", PYTHONPATH=str(site))
        self.assertEqual(status, 0)
        for package in ("cuda_nvcc", "cuda_runtime", "cublas", "cusolver", "nccl"):
            self.assertIn(f"-isystem {site}/nvidia/{package}/include", out)
