"""dev/find_mpi.sh with imitations of wrappers:  dev/run_tests.py test/dev/test_find_mpi.py"""

import os
import re
import shutil
import unittest

from testing import DEV, Case, write_program

# The answers of Open MPI 4.1, MPICH 4.0 and Intel MPI 2021.14 to the question that each knows, and the words of each
# one's mpi.h that are read.
OPEN = ("--showme", "gcc -I{0}/include -I{0}/include/openmpi -L{0}/lib -lmpi",
        "#define OMPI_MAJOR_VERSION 4\n#define OMPI_MINOR_VERSION 1\n#define OMPI_RELEASE_VERSION 4\n")
MPICH = ("-show", "gcc -Wl,-z,relro -I{0}/include -L{0}/lib -lmpich", '#define MPICH_VERSION "4.0.2"\n')
INTEL = ("-show", 'gcc -I"$I_MPI_ROOT/include" -L"$I_MPI_ROOT/lib/release" -L"$I_MPI_ROOT/lib" -Xlinker -rpath '
                  '-Xlinker "$I_MPI_ROOT/lib" -lmpifort -lmpi -lrt', '#define I_MPI_VERSION "2021.14.1"\n'
                                                            '#define MPICH_VERSION "3.4a2"\n')
WRAPPER = """#!/bin/bash
[ "$1" = {} ] || {{ echo "gcc: error: unrecognized option '$1'" >&2; exit 1; }}
cat <<END
{}
END
"""


@unittest.skipUnless(shutil.which("g++"), "needs g++")
class FindMpiTest(Case):
    def find(self, word, mpicc):
        return self.call(DEV / "find_mpi.sh", word, MPICC=mpicc).stdout.strip()

    def install(self, name, question, answer, header):
        """Makes a prefix with this wrapper and header. Returns both."""
        prefix = self.folder / name
        wrapper = write_program(prefix / "bin/mpicc", WRAPPER.format(question, answer.format(prefix)))
        (prefix / "include").mkdir()
        (prefix / "include/mpi.h").write_text(header)
        return prefix, wrapper

    def test_every_dialect(self):
        for name, libraries, folders, mpi in (("Open MPI 4.1.4", "mpi", ["lib"], OPEN),
                                              ("MPICH 4.0.2", "mpich", ["lib"], MPICH),
                                              ("Intel MPI 2021.14.1", "mpi", ["lib/release", "lib"], INTEL)):
            with self.subTest(name):
                prefix, wrapper = self.install(name.replace(" ", ""), *mpi)
                self.assertEqual(self.find("name", wrapper), f"with {name} ({wrapper})")
                self.assertEqual(self.find("include", wrapper).split()[:2], ["-isystem", f"{prefix}/include"])
                expected = "".join(f"-L{prefix}/{f} -Wl,-rpath,{prefix}/{f} " for f in folders)  # not the loader's
                self.assertEqual(self.find("libs", wrapper), f"{expected}-l{libraries}")

    def test_a_folder_of_the_loader_needs_no_rpath(self):
        known = os.path.dirname(re.search(r"=> (\S+/libc\.so\.6)", self.call("/sbin/ldconfig", "-p").stdout)[1])
        _, wrapper = self.install("a", "-show", f"gcc -L{known} -lmpich", "")
        self.assertEqual(self.find("libs", wrapper), f"-L{known} -lmpich")

    def test_without_mpi_there_are_no_flags_and_a_reason(self):
        broken = write_program(self.folder / "broken", "#!/bin/sh\nexit 1\n")
        for mpicc, why in (("none", "MPICC=none"), ("no-mpicc", "no no-mpicc"), (broken, "name no library of MPI")):
            self.assertEqual(self.find("include", mpicc) + self.find("libs", mpicc), "")
            self.assertRegex(self.find("name", mpicc), f"without MPI: .*{why}")
