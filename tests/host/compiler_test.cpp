// Compiling and loading: the files that are made, and the error if they cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/files/files.h"
#include "runtime/backend/host/fiber.h"
#include "runtime/backend/host/process.h"
#include "tests/host/trial.h"
#include "tests/message_of.h"

namespace vqgen::host_test {
namespace {

using testing::HasSubstr;

Trial empty_trial() {
  Trial trial;
  trial.text = "VQ_KERNEL(trial, 64, Args) {}";
  return trial;
}

TEST(Compiler, IdentityNamesVersionAndOptionsButNoPath) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  const CompilerIdentity identity = backend->compiler(source_of(empty_trial()));
  EXPECT_THAT(identity.name, HasSubstr("host api"));
  EXPECT_EQ(identity.name.find('/'), std::string::npos);
  EXPECT_THAT(identity.options, testing::Contains("-ffp-contract=off"));
  EXPECT_EQ(make_host_backend({.compiler = "c++"})->compiler({}).name, identity.name);
}

// A cache must not take one for the other.
TEST(Compiler, IdentityTellsWhatIsOptimised) {
  const auto options = [](bool optimize) {
    return make_host_backend({.optimize = optimize})->compiler({}).options;
  };
  EXPECT_THAT(options(false), testing::Contains("-O0"));
  EXPECT_THAT(options(true), testing::Contains(host::kSanitized ? "-O0" : "-O1"));
}

TEST(Compiler, SameTextGivesSameBytes) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  const KernelSource source = source_of(empty_trial());
  EXPECT_EQ(backend->compile(source).binary, backend->compile(source).binary);
}

TEST(Compiler, CompilesFromSeveralThreads) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  const KernelSource source = source_of(empty_trial());
  std::vector<Artifact> artifacts(4);
  {
    std::vector<std::jthread> threads;
    for (Artifact& artifact : artifacts) {
      threads.emplace_back([&] { artifact = backend->compile(source); });
    }
  }
  for (const Artifact& artifact : artifacts) EXPECT_EQ(artifact.binary, artifacts[0].binary);
}

TEST(Compiler, MissingCompilerIsNamedWithARemedy) {
  for (const char* missing : {"no-such-compiler", "/nowhere/g++"}) {
    const std::unique_ptr<Backend> backend = make_host_backend({.compiler = missing});
    const KernelSource source = source_of(empty_trial());
    for (const std::string& message : {device_error([&] { backend->compile(source); }),
                                       device_error([&] { backend->compiler(source); })}) {
      EXPECT_THAT(message, HasSubstr(missing));
      EXPECT_THAT(message, HasSubstr("install g++"));
    }
  }
}

// Each exits successfully but makes nothing, or a file that is not a library.
TEST(Compiler, AProgramThatIsNoCompilerIsNamed) {
  const host::ScratchFolder folder({});
  const std::string liar = (folder.path() / "liar").string();
  publish_text(liar, "#!/bin/sh\necho liar 1.0\necho text > kernel.so\n");
  const std::string silent = (folder.path() / "silent").string();
  publish_text(silent, "#!/bin/sh\n");
  for (const std::string& path : {liar, silent}) {
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  for (const std::string& program : {std::string("/bin/true"), liar, silent}) {
    const std::unique_ptr<Backend> backend = make_host_backend({.compiler = program});
    const std::string message = device_error([&] { backend->compile(source_of(empty_trial())); });
    EXPECT_THAT(message, HasSubstr(program));
    EXPECT_THAT(message, HasSubstr("VQGEN_CXX"));
  }
}

// It does not know -fno-gnu-unique, and needs no such option: VQGEN_CXX=clang++.
TEST(Compiler, ClangIsGivenNoOptionThatItDoesNotKnow) {
  const host::ScratchFolder folder({});
  const std::string clang = (folder.path() / "clang++").string();
  publish_text(clang,
               "#!/bin/sh\n"
               "if [ \"$1\" = --version ]; then echo 'Debian clang version 14.0.6'; exit 0; fi\n"
               "for each in \"$@\"; do\n"
               "  if [ \"$each\" = -fno-gnu-unique ]; then\n"
               "    echo \"clang: error: unknown argument: '$each'\" >&2; exit 1\n"
               "  fi\n"
               "done\n"
               "exec g++ \"$@\"\n");
  std::filesystem::permissions(clang, std::filesystem::perms::owner_all);
  const std::unique_ptr<Backend> backend = make_host_backend({.compiler = clang});
  const KernelSource source = source_of(empty_trial());
  if (host::kSanitized) {
    EXPECT_THAT(device_error([&] { backend->compile(source); }), HasSubstr("is clang"));
    return;
  }
  backend->load(backend->compile(source), source);
  EXPECT_THAT(backend->compiler(source).options, testing::Contains("-ffp-contract=off"));
}

TEST(Compiler, RejectedTextLeavesItsLogAndItself) {
  Trial trial = empty_trial();
  trial.text = "\nVQ_KERNEL(trial, 64, Args) { int x = undeclared_name; }";
  const std::string message = fault_of(trial);
  EXPECT_THAT(message, HasSubstr("trial.cu:2"));
  EXPECT_THAT(message, HasSubstr("undeclared_name"));
  const std::size_t start = message.find("log in ") + 7;
  const std::filesystem::path log = message.substr(start, message.find(',', start) - start);
  EXPECT_THAT(read_text(log), HasSubstr("undeclared_name"));
  EXPECT_THAT(read_text(log.parent_path() / "kernel.cpp"), HasSubstr("undeclared_name"));
  std::filesystem::remove_all(log.parent_path());
}

TEST(Compiler, LeavesNoFilesBehind) {
  const host::ScratchFolder scratch({});
  {
    const std::unique_ptr<Backend> backend = make_host_backend({.scratch = scratch.path()});
    const KernelSource source = source_of(empty_trial());
    const auto kernel = backend->load(backend->compile(source), source);
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(Compiler, UnwritableScratchIsNamed) {
  const std::unique_ptr<Backend> backend = make_host_backend({.scratch = "/nowhere"});
  EXPECT_THAT(device_error([&] { backend->compile(source_of(empty_trial())); }),
              HasSubstr("cannot make a folder in /nowhere"));
}

TEST(Load, RefusesWhatDoesNotFitTheSource) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  const KernelSource source = source_of(empty_trial());
  const Artifact artifact = backend->compile(source);
  KernelSource other = source;
  other.entries[0].name = "absent";
  EXPECT_THAT(device_error([&] { backend->load(artifact, other); }),
              HasSubstr("no VQ_KERNEL absent"));
  other = source;
  other.entries[0].threads = 128;
  EXPECT_THAT(device_error([&] { backend->load(artifact, other); }),
              HasSubstr("made for 64 threads"));
  other = source;
  other.args_bytes = 8;
  EXPECT_THAT(device_error([&] { backend->load(artifact, other); }),
              HasSubstr("takes 16 bytes of arguments"));
  Artifact torn = artifact;
  torn.binary.resize(100);
  EXPECT_THAT(device_error([&] { backend->load(torn, source); }), HasSubstr("cannot load"));
}

TEST(Launch, RefusesShapesBeyondAGpu) {
  const std::unique_ptr<Backend> backend = make_host_backend();
  KernelSource source = source_of(empty_trial());
  const auto kernel = backend->load(backend->compile(source), source);
  const std::vector<std::byte> args(16);
  source.entries[0].shared_bytes = 232449;
  EXPECT_THAT(device_error([&] { backend->launch(*kernel, source, 0, args); }),
              HasSubstr("232449 shared bytes"));
  source.entries[0].shared_bytes = 0;
  source.entries[0].grid.y = 0;
  EXPECT_THAT(device_error([&] { backend->launch(*kernel, source, 0, args); }), HasSubstr("1x0x1"));
  source.entries[0].grid.y = 1;
  EXPECT_THAT(device_error([&] { backend->launch(*kernel, source, 0, std::span(args).first(8)); }),
              HasSubstr("8 bytes of arguments"));
}

}  // namespace
}  // namespace vqgen::host_test
