# Run as a script: writes a C++ file that holds the given files as text.
#   cmake -DOUTPUT=x.cpp -DROOT=dir -DNAME=embedded_templates -DFILES="a;b" -P embed.cmake
# It defines  std::span<const vqgen::EmbeddedFile> vqgen::NAME();  in the order of FILES.
set(body "// Written by cmake/embed.cmake.\n#include \"core/files/embedded.h\"\n\nnamespace vqgen {\nnamespace {\nconst EmbeddedFile kFiles[] = {\n")
foreach(file IN LISTS FILES)
  file(READ ${ROOT}/${file} content)
  string(APPEND body "    {\"${file}\", R\"vqgen_text(${content})vqgen_text\"},\n")
endforeach()
string(APPEND body "};\n}  // namespace\nstd::span<const EmbeddedFile> ${NAME}() { return kFiles; }\n}  // namespace vqgen\n")
file(WRITE ${OUTPUT} "${body}")
