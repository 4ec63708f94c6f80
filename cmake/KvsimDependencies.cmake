# Third-party libraries, each as one interface target kvsim_<name>. Nothing is downloaded.
include(CheckCXXSourceCompiles)

function(kvsim_dependency name)
  add_library(kvsim_${name} INTERFACE)
  target_link_libraries(kvsim_${name} INTERFACE ${ARGN})
endfunction()

find_package(fmt REQUIRED)
if(KVSIM_STATIC)
  kvsim_dependency(fmt fmt::fmt-header-only)
else()
  kvsim_dependency(fmt fmt::fmt)
endif()

find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)
kvsim_dependency(toml)
target_include_directories(kvsim_toml SYSTEM INTERFACE ${TOMLPLUSPLUS_INCLUDE_DIR})
target_compile_definitions(kvsim_toml INTERFACE TOML_HEADER_ONLY=1)

find_package(nlohmann_json REQUIRED)
kvsim_dependency(nlohmann nlohmann_json::nlohmann_json)

find_package(Eigen3 REQUIRED NO_MODULE)
kvsim_dependency(eigen Eigen3::Eigen)
target_compile_definitions(kvsim_eigen INTERFACE EIGEN_DONT_PARALLELIZE=1)  # we are the parallel ones

set(HDF5_USE_STATIC_LIBRARIES ${KVSIM_STATIC})
enable_language(C)
find_package(HDF5 REQUIRED COMPONENTS C)
kvsim_dependency(hdf5 hdf5::hdf5)
if(KVSIM_STATIC)
  # FindHDF5 forgets the archives that libhdf5.a needs.
  foreach(archive sz aec z)
    find_library(KVSIM_LIB_${archive} lib${archive}.a REQUIRED)
    target_link_libraries(kvsim_hdf5 INTERFACE ${KVSIM_LIB_${archive}})
  endforeach()
  target_link_libraries(kvsim_hdf5 INTERFACE ${CMAKE_DL_LIBS})
endif()

set(Boost_USE_STATIC_LIBS ${KVSIM_STATIC})
find_package(Boost REQUIRED COMPONENTS program_options)
kvsim_dependency(boost_program_options Boost::program_options)

if(KVSIM_STATIC AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libgomp.a
                  OUTPUT_VARIABLE gomp OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(OpenMP_gomp_LIBRARY ${gomp} CACHE FILEPATH "" FORCE)
endif()
find_package(OpenMP REQUIRED COMPONENTS CXX)
kvsim_dependency(openmp OpenMP::OpenMP_CXX)

# Plots are optional: without gnuplot-iostream the verb `plot` says what is missing.
find_path(GNUPLOT_IOSTREAM_INCLUDE_DIR gnuplot-iostream.h)
find_package(Boost QUIET COMPONENTS iostreams system filesystem)
add_library(kvsim_gnuplot INTERFACE)
if(GNUPLOT_IOSTREAM_INCLUDE_DIR AND Boost_IOSTREAMS_FOUND)
  target_include_directories(kvsim_gnuplot SYSTEM INTERFACE ${GNUPLOT_IOSTREAM_INCLUDE_DIR})
  target_link_libraries(kvsim_gnuplot INTERFACE Boost::iostreams Boost::system Boost::filesystem)
  target_compile_definitions(kvsim_gnuplot INTERFACE KVSIM_HAVE_GNUPLOT=1)
endif()
