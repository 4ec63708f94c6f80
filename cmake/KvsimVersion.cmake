# The version and the commit, for the one file that prints them.
find_package(Git QUIET)
set(commit unknown)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${PROJECT_SOURCE_DIR} rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${head})
  endif()
endif()
set_source_files_properties(${PROJECT_SOURCE_DIR}/sim/cli/version.cpp PROPERTIES
  COMPILE_DEFINITIONS "KVSIM_VERSION=\"${PROJECT_VERSION}\";KVSIM_COMMIT=\"${commit}\"")
