# libvqgen: one library of the layers that the C interface is over, shared unless BUILD_SHARED_LIBS is
# off, and what installs it for find_package(vqgen) and pkg-config. A shared one shows the C functions
# alone and needs nothing of ours to link; a static one names the libraries that it needs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
find_package(fmt REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(Boost 1.74 REQUIRED COMPONENTS context)
find_package(Threads REQUIRED)
set(shared_default ON)
if(VQGEN_STATIC)  # what distributions ship statically need not go into a shared library
  set(shared_default OFF)
endif()
option(BUILD_SHARED_LIBS "Build libvqgen as a shared library" ${shared_default})

set(layers core heuristics generator quantizer process backend_cuda backend_host cache verify runtime
           trainer rotating training library)
set(objects ${layers})
list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:vqgen_\\1>")
add_library(libvqgen ${objects})  # the tool's target has the plain name
set_target_properties(libvqgen PROPERTIES OUTPUT_NAME vqgen EXPORT_NAME vqgen LINKER_LANGUAGE CXX)
if(NOT SKBUILD)  # wheels hold no links
  set_target_properties(libvqgen PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endif()
target_link_libraries(libvqgen PRIVATE $<IF:$<BOOL:${VQGEN_STATIC}>,fmt::fmt-header-only,fmt::fmt>
                                    OpenSSL::Crypto Boost::context Threads::Threads ${CMAKE_DL_LIBS})
target_include_directories(libvqgen PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set(export_map ${PROJECT_SOURCE_DIR}/runtime/library/export.map)
set(VQGEN_DEPENDENCIES "")
set(VQGEN_PRIVATE_LIBS "")
if(BUILD_SHARED_LIBS)
  target_link_options(libvqgen PRIVATE -Wl,--version-script=${export_map} -Wl,--no-undefined)
  set_target_properties(libvqgen PROPERTIES LINK_DEPENDS ${export_map})
else()
  set(VQGEN_DEPENDENCIES "include(CMakeFindDependencyMacro)
find_dependency(fmt)
find_dependency(OpenSSL COMPONENTS Crypto)
find_dependency(Boost COMPONENTS context)
find_dependency(Threads)")
  set(VQGEN_PRIVATE_LIBS "-lfmt -lcrypto -lboost_context -lpthread -ldl -lstdc++ -lm")
endif()

add_dependencies(libvqgen vqgen_nvrtc)  # which is installed with it
install(TARGETS libvqgen EXPORT vqgen-targets COMPONENT library
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/vqgen/vqgen.h ${PROJECT_SOURCE_DIR}/include/vqgen/bundle.h ${PROJECT_SOURCE_DIR}/include/vqgen/launch.h
              ${PROJECT_SOURCE_DIR}/include/vqgen/vqgen.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/vqgen COMPONENT library)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/vqgen)
install(EXPORT vqgen-targets NAMESPACE vqgen:: DESTINATION ${package_dir} COMPONENT library)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/vqgen-config.cmake.in
                              ${PROJECT_BINARY_DIR}/vqgen-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/vqgen-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/vqgen-config.cmake ${PROJECT_BINARY_DIR}/vqgen-config-version.cmake
        DESTINATION ${package_dir} COMPONENT library)
string(REGEX REPLACE "[^/]+" ".." VQGEN_PC_PREFIX ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_file(${PROJECT_SOURCE_DIR}/cmake/vqgen.pc.in ${PROJECT_BINARY_DIR}/vqgen.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/vqgen.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT library)
