# One target a layer. vqgen_layer(NAME SOURCES ... LINKS ... [NO_PCH]) makes the static library
# vqgen_NAME. Headers that most sources read are precompiled once, with core; NO_PCH is for targets
# whose own compile options do not go with that.

# Errors but in release, where another compiler's false alarm would keep a user from building.
set(VQGEN_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
                   $<$<NOT:$<CONFIG:Release>>:-Werror>)
# What g++ 12 says of strings in aggregates that were just made, once it optimises and inlines: false
# alarms by the page (GCC bug 105562 and its likes). Builds where warnings are errors optimise less.
list(APPEND VQGEN_WARNINGS $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-maybe-uninitialized>)
set(VQGEN_PRECOMPILED <nlohmann/json.hpp> <fmt/format.h> <fmt/ranges.h> <filesystem> <functional>
                      <map> <memory> <optional> <span> <string> <variant> <vector>)

function(vqgen_options target)
  # Contraction would make results differ from one compiler and machine to the next.
  target_compile_options(${target} PRIVATE ${VQGEN_WARNINGS} -ffp-contract=off)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  if(VQGEN_SANITIZE)
    # Undefined behaviour traps, which ASan reports with its line: an eighth faster to compile than
    # reports of UBSan's own.
    target_compile_options(${target} PRIVATE -fsanitize=${VQGEN_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all -fsanitize-undefined-trap-on-error)
    target_link_options(${target} PUBLIC -fsanitize=${VQGEN_SANITIZE})
  endif()
endfunction()

# Compiles an executable's sources some at a time. What the headers of GoogleTest and CLI11 emit in
# each of them takes longer than the sources themselves. Libraries are compiled one by one but in
# asan and release, so that an include that is missing shows.
function(vqgen_in_batches target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
endfunction()

function(vqgen_layer name)
  cmake_parse_arguments(arg "NO_PCH" "" "SOURCES;LINKS" ${ARGN})
  add_library(vqgen_${name} STATIC ${arg_SOURCES})
  vqgen_options(vqgen_${name})
  set_target_properties(vqgen_${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
  target_link_libraries(vqgen_${name} PUBLIC ${arg_LINKS})
  if(name STREQUAL core)
    target_precompile_headers(vqgen_core PRIVATE ${VQGEN_PRECOMPILED})
  elseif(NOT arg_NO_PCH)
    target_precompile_headers(vqgen_${name} REUSE_FROM vqgen_core)
  endif()
endfunction()

# Tests are checked for addresses alone, by calls: twice as fast to compile, and what they test keeps
# all checks.
function(vqgen_sanitize_lightly target)
  if(VQGEN_SANITIZE MATCHES address)
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined
                                             --param asan-instrumentation-with-call-threshold=0)
  endif()
endfunction()

# vqgen_test(NAME SOURCES ... LINKS ... [LONG pattern] [DEV_ONLY pattern] [TOGETHER]): a GoogleTest
# executable registered with ctest, each test by itself, or with TOGETHER all as one, which starts once and
# early. Tests that LONG takes have the label `long`: `scripts/test.sh --all` alone runs them. Tests that
# DEV_ONLY takes do not run under sanitizers, where they take minutes.
function(vqgen_test name)
  cmake_parse_arguments(arg "TOGETHER" "LONG;DEV_ONLY" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  vqgen_options(${name})
  vqgen_sanitize_lightly(${name})
  vqgen_in_batches(${name})
  target_compile_definitions(${name} PRIVATE VQGEN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_LINKS} vqgen_gtest GTest::gtest_main)
  target_precompile_headers(${name} REUSE_FROM vqgen_gtest)
  set(left_out "${arg_LONG}")
  if(VQGEN_SANITIZE)
    set(left_out "${arg_DEV_ONLY}")
    set(arg_LONG "")
  endif()
  set(discovery DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES)
  if(left_out STREQUAL "*")
  elseif(arg_TOGETHER)
    add_test(NAME ${name} COMMAND ${name} --gtest_brief=1 "--gtest_filter=-${left_out}")
    set_tests_properties(${name} PROPERTIES COST 500 TIMEOUT 1500)
  else()
    gtest_discover_tests(${name} TEST_FILTER "-${left_out}" ${discovery})
  endif()
  if(arg_LONG)
    gtest_discover_tests(${name} TEST_FILTER ${arg_LONG} ${discovery} PROPERTIES LABELS long)
  endif()
endfunction()

# vqgen_embed(NAME ROOT PATTERNS glob ...): NAME_SOURCE is a C++ file that holds the matching files
# below ROOT as text, behind std::span<const vqgen::EmbeddedFile> vqgen::NAME().
function(vqgen_embed name root)
  cmake_parse_arguments(arg "" "" "PATTERNS" ${ARGN})
  set(globs ${arg_PATTERNS})
  list(TRANSFORM globs PREPEND ${root}/)
  file(GLOB files RELATIVE ${root} CONFIGURE_DEPENDS ${globs})
  list(SORT files)
  set(paths ${files})
  list(TRANSFORM paths PREPEND ${root}/)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DROOT=${root} -DNAME=${name} "-DFILES=${files}"
            -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${paths} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
  set(${name}_SOURCE ${output} PARENT_SCOPE)
endfunction()
