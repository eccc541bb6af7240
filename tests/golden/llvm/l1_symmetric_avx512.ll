; gram tile 4x32 (2 vectors of 16) blocks 128x1536x256 [rows x0, columns x1] symmetric f32

define void @km(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %p1 = getelementptr i64, ptr %integers, i64 0
  %v2 = load i64, ptr %p1, align 8
  %p3 = getelementptr i64, ptr %integers, i64 1
  %v4 = load i64, ptr %p3, align 8
  %p5 = getelementptr i64, ptr %integers, i64 2
  %v6 = load i64, ptr %p5, align 8
  %p7 = getelementptr i64, ptr %integers, i64 3
  %v8 = load i64, ptr %p7, align 8
  %p9 = getelementptr i64, ptr %integers, i64 4
  %v10 = load i64, ptr %p9, align 8
  %p11 = getelementptr i64, ptr %integers, i64 5
  %v12 = load i64, ptr %p11, align 8
  %p13 = getelementptr i64, ptr %integers, i64 6
  %v14 = load i64, ptr %p13, align 8
  %p15 = getelementptr i64, ptr %integers, i64 7
  %v16 = load i64, ptr %p15, align 8
  %p17 = getelementptr i64, ptr %integers, i64 8
  %v18 = load i64, ptr %p17, align 8
  %p19 = getelementptr i64, ptr %integers, i64 9
  %v20 = load i64, ptr %p19, align 8
  %p21 = getelementptr i64, ptr %integers, i64 10
  %v22 = load i64, ptr %p21, align 8
  %p23 = getelementptr i64, ptr %integers, i64 11
  %v24 = load i64, ptr %p23, align 8
  %p25 = getelementptr i64, ptr %integers, i64 13
  %v26 = load i64, ptr %p25, align 8
  %p27 = getelementptr i64, ptr %integers, i64 15
  %v28 = load i64, ptr %p27, align 8
  %p29 = getelementptr i64, ptr %integers, i64 16
  %v30 = load i64, ptr %p29, align 8
  %p31 = getelementptr i64, ptr %integers, i64 17
  %v32 = load i64, ptr %p31, align 8
  %p33 = getelementptr i64, ptr %integers, i64 19
  %v34 = load i64, ptr %p33, align 8
  %p35 = getelementptr i64, ptr %integers, i64 20
  %v36 = load i64, ptr %p35, align 8
  %p37 = getelementptr i64, ptr %integers, i64 22
  %v38 = load i64, ptr %p37, align 8
  %p39 = getelementptr i64, ptr %integers, i64 23
  %v40 = load i64, ptr %p39, align 8
  %p41 = getelementptr i64, ptr %integers, i64 24
  %v42 = load i64, ptr %p41, align 8
  %p43 = getelementptr i64, ptr %integers, i64 25
  %v44 = load i64, ptr %p43, align 8
  %p45 = getelementptr i64, ptr %integers, i64 26
  %v46 = load i64, ptr %p45, align 8
  %v47 = add nsw i64 %v8, 3
  %v48 = sdiv i64 %v47, 4
  %v49 = mul nsw i64 %v48, 4
  %v50 = call i64 @llvm.smin.i64(i64 128, i64 %v49)
  %v51 = add nsw i64 %v10, 31
  %v52 = sdiv i64 %v51, 32
  %v53 = mul nsw i64 %v52, 32
  %v54 = call i64 @llvm.smin.i64(i64 1536, i64 %v53)
  %v55 = call i64 @llvm.smax.i64(i64 1, i64 %v12)
  %v56 = call i64 @llvm.smin.i64(i64 256, i64 %v55)
  %v57 = ptrtoint ptr %scratch to i64
  %v58 = add nsw i64 %v57, 63
  %v59 = and i64 %v58, -64
  %v60 = inttoptr i64 %v59 to ptr
  %v61 = mul nsw i64 %v56, 1
  %v62 = mul nsw i64 %v50, 4
  %v63 = mul nsw i64 %v61, %v62
  %v64 = add nsw i64 %v63, 63
  %v65 = and i64 %v64, -64
  %p66 = getelementptr i8, ptr %v60, i64 %v65
  %v67 = mul nsw i64 %v56, 1
  %v68 = mul nsw i64 %v54, 4
  %v69 = mul nsw i64 %v67, %v68
  %v70 = add nsw i64 %v69, 63
  %v71 = and i64 %v70, -64
  %p72 = getelementptr i8, ptr %p66, i64 %v71
  %v73 = sdiv i64 %v54, 32
  %v74 = sdiv i64 %v50, 4
  %v75 = mul nsw i64 %v74, %v73
  %v76 = mul nsw i64 %v75, 512
  %v77 = add nsw i64 %v76, 63
  %v78 = and i64 %v77, -64
  %p79 = getelementptr i8, ptr %p72, i64 %v78
  %p80 = getelementptr i8, ptr %p79, i64 16384
  %p81 = getelementptr ptr, ptr %pointers, i64 0
  %v82 = load ptr, ptr %p81, align 8
  %p83 = getelementptr ptr, ptr %pointers, i64 1
  %v84 = load ptr, ptr %p83, align 8
  %p85 = getelementptr ptr, ptr %pointers, i64 2
  %v86 = load ptr, ptr %p85, align 8
  %v87 = add nsw i64 %v8, 15
  %v88 = sdiv i64 %v87, 16
  br label %head89
head89:
  %item92 = phi i64 [ %begin, %entry ], [ %v248, %done140 ]
  %v93 = icmp slt i64 %item92, %end
  br i1 %v93, label %body90, label %done91
body90:
  %v94 = sdiv i64 %item92, %v88
  %v95 = srem i64 %item92, %v88
  %v96 = sub nsw i64 %v88, %v95
  %v97 = sub nsw i64 %end, %item92
  %v98 = call i64 @llvm.smin.i64(i64 %v96, i64 %v97)
  %v99 = mul nsw i64 %v95, 16
  %v100 = add nsw i64 %v95, %v98
  %v101 = mul nsw i64 %v100, 16
  %v102 = call i64 @llvm.smin.i64(i64 %v8, i64 %v101)
  %v103 = srem i64 %v94, %v16
  %v104 = sdiv i64 %v94, %v16
  %v105 = srem i64 %v104, %v6
  %v106 = sdiv i64 %v104, %v6
  %v107 = srem i64 %v106, %v4
  %v108 = sdiv i64 %v106, %v4
  %v109 = mul nsw i64 %v108, %v18
  %v110 = add nsw i64 0, %v109
  %v111 = mul nsw i64 %v107, %v20
  %v112 = add nsw i64 %v110, %v111
  %v113 = mul nsw i64 %v105, %v22
  %v114 = add nsw i64 %v112, %v113
  %p115 = getelementptr float, ptr %v82, i64 %v114
  %v116 = mul nsw i64 %v108, %v28
  %v117 = add nsw i64 0, %v116
  %v118 = mul nsw i64 %v107, %v30
  %v119 = add nsw i64 %v117, %v118
  %v120 = mul nsw i64 %v105, %v32
  %v121 = add nsw i64 %v119, %v120
  %p122 = getelementptr float, ptr %v84, i64 %v121
  %v123 = mul nsw i64 %v108, %v38
  %v124 = add nsw i64 0, %v123
  %v125 = mul nsw i64 %v107, %v40
  %v126 = add nsw i64 %v124, %v125
  %v127 = mul nsw i64 %v105, %v42
  %v128 = add nsw i64 %v126, %v127
  %p129 = getelementptr float, ptr %v86, i64 %v128
  %v130 = sub nsw i64 %v12, 0
  %v131 = sub nsw i64 %v14, 0
  %v132 = mul nsw i64 %v130, %v131
  %v133 = icmp sle i64 %v132, 0
  %v134 = add nsw i64 %v130, 255
  %v135 = sdiv i64 %v134, 256
  %v136 = call i64 @llvm.smax.i64(i64 1, i64 %v135)
  %v137 = icmp sgt i64 %v10, 1536
  br label %head138
head138:
  %i141 = phi i64 [ %v99, %body90 ], [ %v247, %done149 ]
  %v142 = icmp slt i64 %i141, %v102
  br i1 %v142, label %body139, label %done140
body139:
  %v143 = sub nsw i64 %v102, %i141
  %v144 = call i64 @llvm.smin.i64(i64 128, i64 %v143)
  %v145 = sdiv i64 %i141, 1536
  %v146 = mul nsw i64 %v145, 1536
  br label %head147
head147:
  %i150 = phi i64 [ %v146, %body139 ], [ %v246, %done159 ]
  %v151 = icmp slt i64 %i150, %v10
  br i1 %v151, label %body148, label %done149
body148:
  %v152 = sub nsw i64 %v10, %i150
  %v153 = call i64 @llvm.smin.i64(i64 1536, i64 %v152)
  %v154 = icmp eq i64 %i150, %v146
  %v155 = icmp eq i64 %i141, %v99
  %v156 = or i1 %v137, %v155
  br label %head157
head157:
  %i160 = phi i64 [ 0, %body148 ], [ %v245, %done196 ]
  %v161 = icmp slt i64 %i160, %v136
  br i1 %v161, label %body158, label %done159
body158:
  %v162 = mul nsw i64 %i160, 256
  %v163 = add nsw i64 0, %v162
  %v164 = sub nsw i64 %v12, %v163
  %v165 = call i64 @llvm.smin.i64(i64 256, i64 %v164)
  %v166 = select i1 %v133, i64 0, i64 %v165
  %v167 = icmp ne i64 %v136, 1
  %v168 = icmp ne i64 %v136, 1
  %v169 = or i1 %v154, %v167
  br i1 %v169, label %yes170, label %done171
yes170:
  %v172 = mul nsw i64 %v163, %v26
  %v173 = add nsw i64 0, %v172
  %v174 = mul nsw i64 %i141, %v24
  %v175 = add nsw i64 %v173, %v174
  %p176 = getelementptr float, ptr %p115, i64 %v175
  %v177 = xor i1 %v133, true
  br i1 %v177, label %yes178, label %done179
yes178:
  call fastcc void @km_pack_f32_4(ptr %v60, ptr %p176, i64 %v24, i64 %v26, i64 %v144, i64 %v166)
  br label %done179
done179:
  br label %done171
done171:
  %v180 = or i1 %v156, %v167
  br i1 %v180, label %yes181, label %done182
yes181:
  %v183 = mul nsw i64 %v163, %v36
  %v184 = add nsw i64 0, %v183
  %v185 = mul nsw i64 %i150, %v34
  %v186 = add nsw i64 %v184, %v185
  %p187 = getelementptr float, ptr %p122, i64 %v186
  %v188 = xor i1 %v133, true
  br i1 %v188, label %yes189, label %done190
yes189:
  call fastcc void @km_pack_f32_32(ptr %p66, ptr %p187, i64 %v34, i64 %v36, i64 %v153, i64 %v166)
  br label %done190
done190:
  br label %done182
done182:
  %v191 = icmp eq i64 %i160, 0
  %v192 = add nsw i64 %i160, 1
  %v193 = icmp eq i64 %v192, %v136
  br label %head194
head194:
  %i197 = phi i64 [ 0, %done182 ], [ %v244, %done234 ]
  %v198 = icmp slt i64 %i197, %v153
  br i1 %v198, label %body195, label %done196
body195:
  %v199 = add nsw i64 %i150, %i197
  %v200 = add nsw i64 %v199, 32
  %v201 = sub nsw i64 %v200, %i141
  %v202 = call i64 @llvm.smin.i64(i64 %v144, i64 %v201)
  %v203 = call i64 @llvm.smax.i64(i64 0, i64 %v202)
  br label %head204
head204:
  %i207 = phi i64 [ 0, %body195 ], [ %v232, %body205 ]
  %v208 = icmp slt i64 %i207, %v203
  br i1 %v208, label %body205, label %done206
body205:
  %v209 = add nsw i64 %i141, %i207
  %v210 = mul nsw i64 %i207, %v166
  %p211 = getelementptr float, ptr %v60, i64 %v210
  %v212 = mul nsw i64 %i197, %v166
  %p213 = getelementptr float, ptr %p66, i64 %v212
  %v214 = mul nsw i64 %v209, %v44
  %v215 = add nsw i64 0, %v214
  %v216 = mul nsw i64 %v199, %v46
  %v217 = add nsw i64 %v215, %v216
  %p218 = getelementptr float, ptr %p129, i64 %v217
  %v219 = mul nsw i64 %i207, 32
  %p220 = getelementptr float, ptr %p79, i64 %v219
  %v221 = sub nsw i64 %v209, %v199
  %v222 = sub nsw i64 %v144, %i207
  %v223 = call i64 @llvm.smin.i64(i64 4, i64 %v222)
  %v224 = sub nsw i64 %v153, %i197
  %v225 = call i64 @llvm.smin.i64(i64 32, i64 %v224)
  %v226 = sdiv i64 %i207, 4
  %v227 = mul nsw i64 %v226, %v73
  %v228 = sdiv i64 %i197, 32
  %v229 = add nsw i64 %v227, %v228
  %v230 = mul nsw i64 %v229, 512
  %p231 = getelementptr i8, ptr %p72, i64 %v230
  call fastcc void @km_tile(ptr %integers, ptr %numbers, ptr %p211, ptr %p213, ptr %p218, ptr %p220, ptr %p72, ptr %p231, i64 %v166, i64 %v163, i64 %v223, i64 %v225, i64 %v221, i1 %v191, i1 %v193)
  %v232 = add nsw i64 %i207, 4
  br label %head204
done206:
  br i1 %v193, label %yes233, label %done234
yes233:
  %v235 = sub nsw i64 %v153, %i197
  %v236 = call i64 @llvm.smin.i64(i64 32, i64 %v235)
  %v237 = sub nsw i64 %v199, %i141
  %v238 = add nsw i64 %v237, 1
  %v239 = mul nsw i64 %v199, %v44
  %v240 = add nsw i64 0, %v239
  %v241 = mul nsw i64 %i141, %v46
  %v242 = add nsw i64 %v240, %v241
  %p243 = getelementptr float, ptr %p129, i64 %v242
  call fastcc void @km_mirror_f32(ptr %p243, ptr %p79, i64 %v44, i64 %v46, i64 %v203, i64 %v236, i64 %v238)
  br label %done234
done234:
  %v244 = add nsw i64 %i197, 32
  br label %head194
done196:
  %v245 = add nsw i64 %i160, 1
  br label %head157
done159:
  %v246 = add nsw i64 %i150, 1536
  br label %head147
done149:
  %v247 = add nsw i64 %i141, 128
  br label %head138
done140:
  %v248 = add nsw i64 %item92, %v98
  br label %head89
done91:
  ret void
}

define internal fastcc void @km_tile(ptr %integers, ptr %numbers, ptr %x_x0, ptr %x_x1, ptr %out_0, ptr %strip_0, ptr %cells, ptr %state, i64 %depth, i64 %position, i64 %rows, i64 %columns, i64 %skew, i1 %first, i1 %last) noinline {
entry:
  %room158 = alloca float, i64 128, align 64
  %p1 = getelementptr double, ptr %numbers, i64 0
  %v2 = load double, ptr %p1, align 8
  %v3 = fptrunc double %v2 to float
  br label %head4
head4:
  %k7 = phi i64 [ 0, %entry ], [ %v73, %body5 ]
  %s8 = phi <16 x float> [ splat (float 0x0000000000000000), %entry ], [ %v29, %body5 ]
  %s9 = phi <16 x float> [ splat (float 0x0000000000000000), %entry ], [ %v36, %body5 ]
  %s10 = phi <16 x float> [ splat (float 0x0000000000000000), %entry ], [ %v45, %body5 ]
  %s11 = phi <16 x float> [ splat (float 0x0000000000000000), %entry ], [ %v48, %body5 ]
  %s12 = phi <16 x float> [ splat (float 0x0000000000000000), %entry ], [ %v57, %body5 ]
  %s13 = phi <16 x float> [ splat (float 0x0000000000000000), %entry ], [ %v60, %body5 ]
  %s14 = phi <16 x float> [ splat (float 0x0000000000000000), %entry ], [ %v69, %body5 ]
  %s15 = phi <16 x float> [ splat (float 0x0000000000000000), %entry ], [ %v72, %body5 ]
  %v16 = icmp slt i64 %k7, %depth
  br i1 %v16, label %body5, label %done6
body5:
  %v17 = mul nsw i64 %k7, 4
  %v18 = add nsw i64 %v17, 0
  %p19 = getelementptr float, ptr %x_x0, i64 %v18
  %v20 = load float, ptr %p19, align 4
  %v21 = mul nsw i64 %k7, 32
  %v22 = add nsw i64 %v21, 0
  %p23 = getelementptr float, ptr %x_x1, i64 %v22
  %v24 = load <16 x float>, ptr %p23, align 64
  %v25 = insertelement <16 x float> poison, float %v20, i64 0
  %v26 = shufflevector <16 x float> %v25, <16 x float> poison, <16 x i32> zeroinitializer
  %v27 = fsub contract <16 x float> %v26, %v24
  %v28 = call <16 x float> @llvm.fabs.v16f32(<16 x float> %v27)
  %v29 = fadd contract <16 x float> %s8, %v28
  %v30 = mul nsw i64 %k7, 32
  %v31 = add nsw i64 %v30, 16
  %p32 = getelementptr float, ptr %x_x1, i64 %v31
  %v33 = load <16 x float>, ptr %p32, align 64
  %v34 = fsub contract <16 x float> %v26, %v33
  %v35 = call <16 x float> @llvm.fabs.v16f32(<16 x float> %v34)
  %v36 = fadd contract <16 x float> %s9, %v35
  %v37 = mul nsw i64 %k7, 4
  %v38 = add nsw i64 %v37, 1
  %p39 = getelementptr float, ptr %x_x0, i64 %v38
  %v40 = load float, ptr %p39, align 4
  %v41 = insertelement <16 x float> poison, float %v40, i64 0
  %v42 = shufflevector <16 x float> %v41, <16 x float> poison, <16 x i32> zeroinitializer
  %v43 = fsub contract <16 x float> %v42, %v24
  %v44 = call <16 x float> @llvm.fabs.v16f32(<16 x float> %v43)
  %v45 = fadd contract <16 x float> %s10, %v44
  %v46 = fsub contract <16 x float> %v42, %v33
  %v47 = call <16 x float> @llvm.fabs.v16f32(<16 x float> %v46)
  %v48 = fadd contract <16 x float> %s11, %v47
  %v49 = mul nsw i64 %k7, 4
  %v50 = add nsw i64 %v49, 2
  %p51 = getelementptr float, ptr %x_x0, i64 %v50
  %v52 = load float, ptr %p51, align 4
  %v53 = insertelement <16 x float> poison, float %v52, i64 0
  %v54 = shufflevector <16 x float> %v53, <16 x float> poison, <16 x i32> zeroinitializer
  %v55 = fsub contract <16 x float> %v54, %v24
  %v56 = call <16 x float> @llvm.fabs.v16f32(<16 x float> %v55)
  %v57 = fadd contract <16 x float> %s12, %v56
  %v58 = fsub contract <16 x float> %v54, %v33
  %v59 = call <16 x float> @llvm.fabs.v16f32(<16 x float> %v58)
  %v60 = fadd contract <16 x float> %s13, %v59
  %v61 = mul nsw i64 %k7, 4
  %v62 = add nsw i64 %v61, 3
  %p63 = getelementptr float, ptr %x_x0, i64 %v62
  %v64 = load float, ptr %p63, align 4
  %v65 = insertelement <16 x float> poison, float %v64, i64 0
  %v66 = shufflevector <16 x float> %v65, <16 x float> poison, <16 x i32> zeroinitializer
  %v67 = fsub contract <16 x float> %v66, %v24
  %v68 = call <16 x float> @llvm.fabs.v16f32(<16 x float> %v67)
  %v69 = fadd contract <16 x float> %s14, %v68
  %v70 = fsub contract <16 x float> %v66, %v33
  %v71 = call <16 x float> @llvm.fabs.v16f32(<16 x float> %v70)
  %v72 = fadd contract <16 x float> %s15, %v71
  %v73 = add nsw i64 %k7, 1
  br label %head4, !llvm.loop !0
done6:
  br i1 %first, label %ready75, label %join74
join74:
  %p76 = getelementptr i8, ptr %state, i64 0
  %v77 = load <16 x float>, ptr %p76, align 4
  %p78 = getelementptr i8, ptr %state, i64 64
  %v79 = load <16 x float>, ptr %p78, align 4
  %p80 = getelementptr i8, ptr %state, i64 128
  %v81 = load <16 x float>, ptr %p80, align 4
  %p82 = getelementptr i8, ptr %state, i64 192
  %v83 = load <16 x float>, ptr %p82, align 4
  %p84 = getelementptr i8, ptr %state, i64 256
  %v85 = load <16 x float>, ptr %p84, align 4
  %p86 = getelementptr i8, ptr %state, i64 320
  %v87 = load <16 x float>, ptr %p86, align 4
  %p88 = getelementptr i8, ptr %state, i64 384
  %v89 = load <16 x float>, ptr %p88, align 4
  %p90 = getelementptr i8, ptr %state, i64 448
  %v91 = load <16 x float>, ptr %p90, align 4
  %v92 = fadd contract <16 x float> %v77, %s8
  %v93 = fadd contract <16 x float> %v79, %s9
  %v94 = fadd contract <16 x float> %v81, %s10
  %v95 = fadd contract <16 x float> %v83, %s11
  %v96 = fadd contract <16 x float> %v85, %s12
  %v97 = fadd contract <16 x float> %v87, %s13
  %v98 = fadd contract <16 x float> %v89, %s14
  %v99 = fadd contract <16 x float> %v91, %s15
  br label %ready75
ready75:
  %v100 = phi <16 x float> [ %s8, %done6 ], [ %v92, %join74 ]
  %v101 = phi <16 x float> [ %s9, %done6 ], [ %v93, %join74 ]
  %v102 = phi <16 x float> [ %s10, %done6 ], [ %v94, %join74 ]
  %v103 = phi <16 x float> [ %s11, %done6 ], [ %v95, %join74 ]
  %v104 = phi <16 x float> [ %s12, %done6 ], [ %v96, %join74 ]
  %v105 = phi <16 x float> [ %s13, %done6 ], [ %v97, %join74 ]
  %v106 = phi <16 x float> [ %s14, %done6 ], [ %v98, %join74 ]
  %v107 = phi <16 x float> [ %s15, %done6 ], [ %v99, %join74 ]
  br i1 %last, label %finish109, label %keep108
keep108:
  %p110 = getelementptr i8, ptr %state, i64 0
  store <16 x float> %v100, ptr %p110, align 4
  %p111 = getelementptr i8, ptr %state, i64 64
  store <16 x float> %v101, ptr %p111, align 4
  %p112 = getelementptr i8, ptr %state, i64 128
  store <16 x float> %v102, ptr %p112, align 4
  %p113 = getelementptr i8, ptr %state, i64 192
  store <16 x float> %v103, ptr %p113, align 4
  %p114 = getelementptr i8, ptr %state, i64 256
  store <16 x float> %v104, ptr %p114, align 4
  %p115 = getelementptr i8, ptr %state, i64 320
  store <16 x float> %v105, ptr %p115, align 4
  %p116 = getelementptr i8, ptr %state, i64 384
  store <16 x float> %v106, ptr %p116, align 4
  %p117 = getelementptr i8, ptr %state, i64 448
  store <16 x float> %v107, ptr %p117, align 4
  ret void
finish109:
  %p118 = getelementptr i64, ptr %integers, i64 25
  %v119 = load i64, ptr %p118, align 8
  %p120 = getelementptr i64, ptr %integers, i64 26
  %v121 = load i64, ptr %p120, align 8
  %v122 = icmp eq i64 %columns, 32
  %v123 = icmp eq i64 %v121, 1
  %v124 = and i1 %v122, %v123
  %v125 = icmp sle i64 %skew, -3
  %v126 = and i1 %v124, %v125
  br i1 %v126, label %whole127, label %other128
whole127:
  %v130 = icmp sgt i64 %rows, 0
  br i1 %v130, label %yes131, label %done132
yes131:
  %v133 = mul nsw i64 %v119, 0
  %p134 = getelementptr float, ptr %out_0, i64 %v133
  %p135 = getelementptr float, ptr %p134, i64 0
  store <16 x float> %v100, ptr %p135, align 4
  %p136 = getelementptr float, ptr %p134, i64 16
  store <16 x float> %v101, ptr %p136, align 4
  br label %done132
done132:
  %v137 = icmp sgt i64 %rows, 1
  br i1 %v137, label %yes138, label %done139
yes138:
  %v140 = mul nsw i64 %v119, 1
  %p141 = getelementptr float, ptr %out_0, i64 %v140
  %p142 = getelementptr float, ptr %p141, i64 0
  store <16 x float> %v102, ptr %p142, align 4
  %p143 = getelementptr float, ptr %p141, i64 16
  store <16 x float> %v103, ptr %p143, align 4
  br label %done139
done139:
  %v144 = icmp sgt i64 %rows, 2
  br i1 %v144, label %yes145, label %done146
yes145:
  %v147 = mul nsw i64 %v119, 2
  %p148 = getelementptr float, ptr %out_0, i64 %v147
  %p149 = getelementptr float, ptr %p148, i64 0
  store <16 x float> %v104, ptr %p149, align 4
  %p150 = getelementptr float, ptr %p148, i64 16
  store <16 x float> %v105, ptr %p150, align 4
  br label %done146
done146:
  %v151 = icmp sgt i64 %rows, 3
  br i1 %v151, label %yes152, label %done153
yes152:
  %v154 = mul nsw i64 %v119, 3
  %p155 = getelementptr float, ptr %out_0, i64 %v154
  %p156 = getelementptr float, ptr %p155, i64 0
  store <16 x float> %v106, ptr %p156, align 4
  %p157 = getelementptr float, ptr %p155, i64 16
  store <16 x float> %v107, ptr %p157, align 4
  br label %done153
done153:
  br label %done129
other128:
  %p159 = getelementptr float, ptr %room158, i64 0
  store <16 x float> %v100, ptr %p159, align 4
  %p160 = getelementptr float, ptr %room158, i64 16
  store <16 x float> %v101, ptr %p160, align 4
  %p161 = getelementptr float, ptr %room158, i64 32
  store <16 x float> %v102, ptr %p161, align 4
  %p162 = getelementptr float, ptr %room158, i64 48
  store <16 x float> %v103, ptr %p162, align 4
  %p163 = getelementptr float, ptr %room158, i64 64
  store <16 x float> %v104, ptr %p163, align 4
  %p164 = getelementptr float, ptr %room158, i64 80
  store <16 x float> %v105, ptr %p164, align 4
  %p165 = getelementptr float, ptr %room158, i64 96
  store <16 x float> %v106, ptr %p165, align 4
  %p166 = getelementptr float, ptr %room158, i64 112
  store <16 x float> %v107, ptr %p166, align 4
  call fastcc void @km_scatter_f32(ptr %out_0, ptr %room158, i64 %v119, i64 %v121, i64 %rows, i64 %columns, i64 %skew)
  br label %done129
done129:
  %p167 = getelementptr float, ptr %strip_0, i64 0
  store <16 x float> %v100, ptr %p167, align 4
  %p168 = getelementptr float, ptr %strip_0, i64 16
  store <16 x float> %v101, ptr %p168, align 4
  %p169 = getelementptr float, ptr %strip_0, i64 32
  store <16 x float> %v102, ptr %p169, align 4
  %p170 = getelementptr float, ptr %strip_0, i64 48
  store <16 x float> %v103, ptr %p170, align 4
  %p171 = getelementptr float, ptr %strip_0, i64 64
  store <16 x float> %v104, ptr %p171, align 4
  %p172 = getelementptr float, ptr %strip_0, i64 80
  store <16 x float> %v105, ptr %p172, align 4
  %p173 = getelementptr float, ptr %strip_0, i64 96
  store <16 x float> %v106, ptr %p173, align 4
  %p174 = getelementptr float, ptr %strip_0, i64 112
  store <16 x float> %v107, ptr %p174, align 4
  ret void
}

define internal fastcc void @km_pack_f32_4(ptr noalias %into, ptr %from, i64 %run, i64 %stride, i64 %count, i64 %depth) noinline {
entry:
  %room1 = alloca i64, i64 1, align 64
  %v2 = add nsw i64 %count, 3
  %v3 = sdiv i64 %v2, 4
  %v4 = icmp eq i64 %run, 1
  %v5 = icmp eq i64 %stride, 1
  br label %head6
head6:
  %i9 = phi i64 [ 0, %entry ], [ %v122, %done103 ]
  %v10 = icmp slt i64 %i9, %v3
  br i1 %v10, label %body7, label %done8
body7:
  %v11 = mul nsw i64 %i9, 4
  %v12 = mul nsw i64 %v11, %run
  %p13 = getelementptr float, ptr %from, i64 %v12
  %v14 = mul nsw i64 %v11, %depth
  %p15 = getelementptr float, ptr %into, i64 %v14
  %v16 = sub nsw i64 %count, %v11
  %v17 = call i64 @llvm.smin.i64(i64 %v16, i64 4)
  %v18 = sub nsw i64 %v17, 1
  %v19 = icmp sge i64 %v16, 4
  store i64 0, ptr %room1, align 8
  %v20 = and i1 %v19, %v4
  br i1 %v20, label %yes21, label %done22
yes21:
  br label %head23
head23:
  %i26 = phi i64 [ 0, %yes21 ], [ %v33, %body24 ]
  %v27 = icmp slt i64 %i26, %depth
  br i1 %v27, label %body24, label %done25
body24:
  %v28 = mul nsw i64 %i26, %stride
  %p29 = getelementptr float, ptr %p13, i64 %v28
  %v30 = load <4 x float>, ptr %p29, align 4
  %v31 = mul nsw i64 %i26, 4
  %p32 = getelementptr float, ptr %p15, i64 %v31
  store <4 x float> %v30, ptr %p32, align 4
  %v33 = add nsw i64 %i26, 1
  br label %head23
done25:
  store i64 %depth, ptr %room1, align 8
  br label %done22
done22:
  %v34 = xor i1 %v4, true
  %v35 = and i1 %v5, %v34
  br i1 %v35, label %yes36, label %done37
yes36:
  %v38 = sdiv i64 %depth, 4
  %v39 = mul nsw i64 %v38, 4
  br label %head40
head40:
  %i43 = phi i64 [ 0, %yes36 ], [ %v99, %done47 ]
  %v44 = icmp slt i64 %i43, %v39
  br i1 %v44, label %body41, label %done42
body41:
  br label %head45
head45:
  %i48 = phi i64 [ 0, %body41 ], [ %v98, %body46 ]
  %v49 = icmp slt i64 %i48, 4
  br i1 %v49, label %body46, label %done47
body46:
  %v50 = add nsw i64 %i48, 0
  %v51 = call i64 @llvm.smin.i64(i64 %v50, i64 %v18)
  %v52 = mul nsw i64 %v51, %run
  %v53 = add nsw i64 %v52, %i43
  %p54 = getelementptr float, ptr %p13, i64 %v53
  %v55 = load <4 x float>, ptr %p54, align 4
  %v56 = add nsw i64 %i48, 1
  %v57 = call i64 @llvm.smin.i64(i64 %v56, i64 %v18)
  %v58 = mul nsw i64 %v57, %run
  %v59 = add nsw i64 %v58, %i43
  %p60 = getelementptr float, ptr %p13, i64 %v59
  %v61 = load <4 x float>, ptr %p60, align 4
  %v62 = add nsw i64 %i48, 2
  %v63 = call i64 @llvm.smin.i64(i64 %v62, i64 %v18)
  %v64 = mul nsw i64 %v63, %run
  %v65 = add nsw i64 %v64, %i43
  %p66 = getelementptr float, ptr %p13, i64 %v65
  %v67 = load <4 x float>, ptr %p66, align 4
  %v68 = add nsw i64 %i48, 3
  %v69 = call i64 @llvm.smin.i64(i64 %v68, i64 %v18)
  %v70 = mul nsw i64 %v69, %run
  %v71 = add nsw i64 %v70, %i43
  %p72 = getelementptr float, ptr %p13, i64 %v71
  %v73 = load <4 x float>, ptr %p72, align 4
  %v74 = shufflevector <4 x float> %v55, <4 x float> %v61, <4 x i32> <i32 0, i32 4, i32 2, i32 6>
  %v75 = shufflevector <4 x float> %v55, <4 x float> %v61, <4 x i32> <i32 1, i32 5, i32 3, i32 7>
  %v76 = shufflevector <4 x float> %v67, <4 x float> %v73, <4 x i32> <i32 0, i32 4, i32 2, i32 6>
  %v77 = shufflevector <4 x float> %v67, <4 x float> %v73, <4 x i32> <i32 1, i32 5, i32 3, i32 7>
  %v78 = shufflevector <4 x float> %v74, <4 x float> %v76, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v79 = shufflevector <4 x float> %v74, <4 x float> %v76, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v80 = shufflevector <4 x float> %v75, <4 x float> %v77, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v81 = shufflevector <4 x float> %v75, <4 x float> %v77, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v82 = add nsw i64 %i43, 0
  %v83 = mul nsw i64 %v82, 4
  %v84 = add nsw i64 %v83, %i48
  %p85 = getelementptr float, ptr %p15, i64 %v84
  store <4 x float> %v78, ptr %p85, align 4
  %v86 = add nsw i64 %i43, 1
  %v87 = mul nsw i64 %v86, 4
  %v88 = add nsw i64 %v87, %i48
  %p89 = getelementptr float, ptr %p15, i64 %v88
  store <4 x float> %v80, ptr %p89, align 4
  %v90 = add nsw i64 %i43, 2
  %v91 = mul nsw i64 %v90, 4
  %v92 = add nsw i64 %v91, %i48
  %p93 = getelementptr float, ptr %p15, i64 %v92
  store <4 x float> %v79, ptr %p93, align 4
  %v94 = add nsw i64 %i43, 3
  %v95 = mul nsw i64 %v94, 4
  %v96 = add nsw i64 %v95, %i48
  %p97 = getelementptr float, ptr %p15, i64 %v96
  store <4 x float> %v81, ptr %p97, align 4
  %v98 = add nsw i64 %i48, 4
  br label %head45
done47:
  %v99 = add nsw i64 %i43, 4
  br label %head40
done42:
  store i64 %v39, ptr %room1, align 8
  br label %done37
done37:
  %v100 = load i64, ptr %room1, align 8
  br label %head101
head101:
  %i104 = phi i64 [ %v100, %done37 ], [ %v121, %done108 ]
  %v105 = icmp slt i64 %i104, %depth
  br i1 %v105, label %body102, label %done103
body102:
  br label %head106
head106:
  %i109 = phi i64 [ 0, %body102 ], [ %v120, %body107 ]
  %v110 = icmp slt i64 %i109, 4
  br i1 %v110, label %body107, label %done108
body107:
  %v111 = call i64 @llvm.smin.i64(i64 %i109, i64 %v18)
  %v112 = mul nsw i64 %v111, %run
  %v113 = mul nsw i64 %i104, %stride
  %v114 = add nsw i64 %v112, %v113
  %p115 = getelementptr float, ptr %p13, i64 %v114
  %v116 = load float, ptr %p115, align 4
  %v117 = mul nsw i64 %i104, 4
  %v118 = add nsw i64 %v117, %i109
  %p119 = getelementptr float, ptr %p15, i64 %v118
  store float %v116, ptr %p119, align 4
  %v120 = add nsw i64 %i109, 1
  br label %head106
done108:
  %v121 = add nsw i64 %i104, 1
  br label %head101
done103:
  %v122 = add nsw i64 %i9, 1
  br label %head6
done8:
  ret void
}

define internal fastcc void @km_pack_f32_32(ptr noalias %into, ptr %from, i64 %run, i64 %stride, i64 %count, i64 %depth) noinline {
entry:
  %room1 = alloca i64, i64 1, align 64
  %v2 = add nsw i64 %count, 31
  %v3 = sdiv i64 %v2, 32
  %v4 = icmp eq i64 %run, 1
  %v5 = icmp eq i64 %stride, 1
  br label %head6
head6:
  %i9 = phi i64 [ 0, %entry ], [ %v178, %done159 ]
  %v10 = icmp slt i64 %i9, %v3
  br i1 %v10, label %body7, label %done8
body7:
  %v11 = mul nsw i64 %i9, 32
  %v12 = mul nsw i64 %v11, %run
  %p13 = getelementptr float, ptr %from, i64 %v12
  %v14 = mul nsw i64 %v11, %depth
  %p15 = getelementptr float, ptr %into, i64 %v14
  %v16 = sub nsw i64 %count, %v11
  %v17 = call i64 @llvm.smin.i64(i64 %v16, i64 32)
  %v18 = sub nsw i64 %v17, 1
  %v19 = icmp sge i64 %v16, 32
  store i64 0, ptr %room1, align 8
  %v20 = and i1 %v19, %v4
  br i1 %v20, label %yes21, label %done22
yes21:
  br label %head23
head23:
  %i26 = phi i64 [ 0, %yes21 ], [ %v33, %body24 ]
  %v27 = icmp slt i64 %i26, %depth
  br i1 %v27, label %body24, label %done25
body24:
  %v28 = mul nsw i64 %i26, %stride
  %p29 = getelementptr float, ptr %p13, i64 %v28
  %v30 = load <32 x float>, ptr %p29, align 4
  %v31 = mul nsw i64 %i26, 32
  %p32 = getelementptr float, ptr %p15, i64 %v31
  store <32 x float> %v30, ptr %p32, align 4
  %v33 = add nsw i64 %i26, 1
  br label %head23
done25:
  store i64 %depth, ptr %room1, align 8
  br label %done22
done22:
  %v34 = xor i1 %v4, true
  %v35 = and i1 %v5, %v34
  br i1 %v35, label %yes36, label %done37
yes36:
  %v38 = sdiv i64 %depth, 8
  %v39 = mul nsw i64 %v38, 8
  br label %head40
head40:
  %i43 = phi i64 [ 0, %yes36 ], [ %v155, %done47 ]
  %v44 = icmp slt i64 %i43, %v39
  br i1 %v44, label %body41, label %done42
body41:
  br label %head45
head45:
  %i48 = phi i64 [ 0, %body41 ], [ %v154, %body46 ]
  %v49 = icmp slt i64 %i48, 32
  br i1 %v49, label %body46, label %done47
body46:
  %v50 = add nsw i64 %i48, 0
  %v51 = call i64 @llvm.smin.i64(i64 %v50, i64 %v18)
  %v52 = mul nsw i64 %v51, %run
  %v53 = add nsw i64 %v52, %i43
  %p54 = getelementptr float, ptr %p13, i64 %v53
  %v55 = load <8 x float>, ptr %p54, align 4
  %v56 = add nsw i64 %i48, 1
  %v57 = call i64 @llvm.smin.i64(i64 %v56, i64 %v18)
  %v58 = mul nsw i64 %v57, %run
  %v59 = add nsw i64 %v58, %i43
  %p60 = getelementptr float, ptr %p13, i64 %v59
  %v61 = load <8 x float>, ptr %p60, align 4
  %v62 = add nsw i64 %i48, 2
  %v63 = call i64 @llvm.smin.i64(i64 %v62, i64 %v18)
  %v64 = mul nsw i64 %v63, %run
  %v65 = add nsw i64 %v64, %i43
  %p66 = getelementptr float, ptr %p13, i64 %v65
  %v67 = load <8 x float>, ptr %p66, align 4
  %v68 = add nsw i64 %i48, 3
  %v69 = call i64 @llvm.smin.i64(i64 %v68, i64 %v18)
  %v70 = mul nsw i64 %v69, %run
  %v71 = add nsw i64 %v70, %i43
  %p72 = getelementptr float, ptr %p13, i64 %v71
  %v73 = load <8 x float>, ptr %p72, align 4
  %v74 = add nsw i64 %i48, 4
  %v75 = call i64 @llvm.smin.i64(i64 %v74, i64 %v18)
  %v76 = mul nsw i64 %v75, %run
  %v77 = add nsw i64 %v76, %i43
  %p78 = getelementptr float, ptr %p13, i64 %v77
  %v79 = load <8 x float>, ptr %p78, align 4
  %v80 = add nsw i64 %i48, 5
  %v81 = call i64 @llvm.smin.i64(i64 %v80, i64 %v18)
  %v82 = mul nsw i64 %v81, %run
  %v83 = add nsw i64 %v82, %i43
  %p84 = getelementptr float, ptr %p13, i64 %v83
  %v85 = load <8 x float>, ptr %p84, align 4
  %v86 = add nsw i64 %i48, 6
  %v87 = call i64 @llvm.smin.i64(i64 %v86, i64 %v18)
  %v88 = mul nsw i64 %v87, %run
  %v89 = add nsw i64 %v88, %i43
  %p90 = getelementptr float, ptr %p13, i64 %v89
  %v91 = load <8 x float>, ptr %p90, align 4
  %v92 = add nsw i64 %i48, 7
  %v93 = call i64 @llvm.smin.i64(i64 %v92, i64 %v18)
  %v94 = mul nsw i64 %v93, %run
  %v95 = add nsw i64 %v94, %i43
  %p96 = getelementptr float, ptr %p13, i64 %v95
  %v97 = load <8 x float>, ptr %p96, align 4
  %v98 = shufflevector <8 x float> %v55, <8 x float> %v61, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v99 = shufflevector <8 x float> %v55, <8 x float> %v61, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v100 = shufflevector <8 x float> %v67, <8 x float> %v73, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v101 = shufflevector <8 x float> %v67, <8 x float> %v73, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v102 = shufflevector <8 x float> %v79, <8 x float> %v85, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v103 = shufflevector <8 x float> %v79, <8 x float> %v85, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v104 = shufflevector <8 x float> %v91, <8 x float> %v97, <8 x i32> <i32 0, i32 8, i32 2, i32 10, i32 4, i32 12, i32 6, i32 14>
  %v105 = shufflevector <8 x float> %v91, <8 x float> %v97, <8 x i32> <i32 1, i32 9, i32 3, i32 11, i32 5, i32 13, i32 7, i32 15>
  %v106 = shufflevector <8 x float> %v98, <8 x float> %v100, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v107 = shufflevector <8 x float> %v98, <8 x float> %v100, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v108 = shufflevector <8 x float> %v99, <8 x float> %v101, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v109 = shufflevector <8 x float> %v99, <8 x float> %v101, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v110 = shufflevector <8 x float> %v102, <8 x float> %v104, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v111 = shufflevector <8 x float> %v102, <8 x float> %v104, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v112 = shufflevector <8 x float> %v103, <8 x float> %v105, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %v113 = shufflevector <8 x float> %v103, <8 x float> %v105, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %v114 = shufflevector <8 x float> %v106, <8 x float> %v110, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v115 = shufflevector <8 x float> %v106, <8 x float> %v110, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v116 = shufflevector <8 x float> %v108, <8 x float> %v112, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v117 = shufflevector <8 x float> %v108, <8 x float> %v112, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v118 = shufflevector <8 x float> %v107, <8 x float> %v111, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v119 = shufflevector <8 x float> %v107, <8 x float> %v111, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v120 = shufflevector <8 x float> %v109, <8 x float> %v113, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %v121 = shufflevector <8 x float> %v109, <8 x float> %v113, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %v122 = add nsw i64 %i43, 0
  %v123 = mul nsw i64 %v122, 32
  %v124 = add nsw i64 %v123, %i48
  %p125 = getelementptr float, ptr %p15, i64 %v124
  store <8 x float> %v114, ptr %p125, align 4
  %v126 = add nsw i64 %i43, 1
  %v127 = mul nsw i64 %v126, 32
  %v128 = add nsw i64 %v127, %i48
  %p129 = getelementptr float, ptr %p15, i64 %v128
  store <8 x float> %v116, ptr %p129, align 4
  %v130 = add nsw i64 %i43, 2
  %v131 = mul nsw i64 %v130, 32
  %v132 = add nsw i64 %v131, %i48
  %p133 = getelementptr float, ptr %p15, i64 %v132
  store <8 x float> %v118, ptr %p133, align 4
  %v134 = add nsw i64 %i43, 3
  %v135 = mul nsw i64 %v134, 32
  %v136 = add nsw i64 %v135, %i48
  %p137 = getelementptr float, ptr %p15, i64 %v136
  store <8 x float> %v120, ptr %p137, align 4
  %v138 = add nsw i64 %i43, 4
  %v139 = mul nsw i64 %v138, 32
  %v140 = add nsw i64 %v139, %i48
  %p141 = getelementptr float, ptr %p15, i64 %v140
  store <8 x float> %v115, ptr %p141, align 4
  %v142 = add nsw i64 %i43, 5
  %v143 = mul nsw i64 %v142, 32
  %v144 = add nsw i64 %v143, %i48
  %p145 = getelementptr float, ptr %p15, i64 %v144
  store <8 x float> %v117, ptr %p145, align 4
  %v146 = add nsw i64 %i43, 6
  %v147 = mul nsw i64 %v146, 32
  %v148 = add nsw i64 %v147, %i48
  %p149 = getelementptr float, ptr %p15, i64 %v148
  store <8 x float> %v119, ptr %p149, align 4
  %v150 = add nsw i64 %i43, 7
  %v151 = mul nsw i64 %v150, 32
  %v152 = add nsw i64 %v151, %i48
  %p153 = getelementptr float, ptr %p15, i64 %v152
  store <8 x float> %v121, ptr %p153, align 4
  %v154 = add nsw i64 %i48, 8
  br label %head45
done47:
  %v155 = add nsw i64 %i43, 8
  br label %head40
done42:
  store i64 %v39, ptr %room1, align 8
  br label %done37
done37:
  %v156 = load i64, ptr %room1, align 8
  br label %head157
head157:
  %i160 = phi i64 [ %v156, %done37 ], [ %v177, %done164 ]
  %v161 = icmp slt i64 %i160, %depth
  br i1 %v161, label %body158, label %done159
body158:
  br label %head162
head162:
  %i165 = phi i64 [ 0, %body158 ], [ %v176, %body163 ]
  %v166 = icmp slt i64 %i165, 32
  br i1 %v166, label %body163, label %done164
body163:
  %v167 = call i64 @llvm.smin.i64(i64 %i165, i64 %v18)
  %v168 = mul nsw i64 %v167, %run
  %v169 = mul nsw i64 %i160, %stride
  %v170 = add nsw i64 %v168, %v169
  %p171 = getelementptr float, ptr %p13, i64 %v170
  %v172 = load float, ptr %p171, align 4
  %v173 = mul nsw i64 %i160, 32
  %v174 = add nsw i64 %v173, %i165
  %p175 = getelementptr float, ptr %p15, i64 %v174
  store float %v172, ptr %p175, align 4
  %v176 = add nsw i64 %i165, 1
  br label %head162
done164:
  %v177 = add nsw i64 %i160, 1
  br label %head157
done159:
  %v178 = add nsw i64 %i9, 1
  br label %head6
done8:
  ret void
}

define internal fastcc void @km_scatter_f32(ptr %into, ptr noalias %from, i64 %sm, i64 %sn, i64 %rows, i64 %columns, i64 %skew) noinline {
entry:
  br label %head1
head1:
  %i4 = phi i64 [ 0, %entry ], [ %v22, %done10 ]
  %v5 = icmp slt i64 %i4, %rows
  br i1 %v5, label %body2, label %done3
body2:
  %v6 = add nsw i64 %i4, %skew
  %v7 = call i64 @llvm.smax.i64(i64 0, i64 %v6)
  br label %head8
head8:
  %i11 = phi i64 [ %v7, %body2 ], [ %v21, %body9 ]
  %v12 = icmp slt i64 %i11, %columns
  br i1 %v12, label %body9, label %done10
body9:
  %v13 = mul nsw i64 %i4, 32
  %v14 = add nsw i64 %v13, %i11
  %p15 = getelementptr float, ptr %from, i64 %v14
  %v16 = load float, ptr %p15, align 4
  %v17 = mul nsw i64 %i4, %sm
  %v18 = mul nsw i64 %i11, %sn
  %v19 = add nsw i64 %v17, %v18
  %p20 = getelementptr float, ptr %into, i64 %v19
  store float %v16, ptr %p20, align 4
  %v21 = add nsw i64 %i11, 1
  br label %head8
done10:
  %v22 = add nsw i64 %i4, 1
  br label %head1
done3:
  ret void
}

define internal fastcc void @km_mirror_f32(ptr %into, ptr noalias %from, i64 %line, i64 %step, i64 %rows, i64 %columns, i64 %reach) noinline {
entry:
  %room1 = alloca i64, i64 1, align 64
  %v2 = icmp eq i64 %step, 1
  br label %head3
head3:
  %i6 = phi i64 [ 0, %entry ], [ %v212, %done192 ]
  %v7 = icmp slt i64 %i6, %columns
  br i1 %v7, label %body4, label %done5
body4:
  store i64 0, ptr %room1, align 8
  %v8 = add nsw i64 %i6, 16
  %v9 = icmp sle i64 %v8, %columns
  %v10 = and i1 %v9, %v2
  br i1 %v10, label %yes11, label %done12
yes11:
  %v13 = add nsw i64 %reach, %i6
  %v14 = call i64 @llvm.smin.i64(i64 %rows, i64 %v13)
  %v15 = call i64 @llvm.smax.i64(i64 0, i64 %v14)
  %v16 = sdiv i64 %v15, 16
  %v17 = mul nsw i64 %v16, 16
  br label %head18
head18:
  %i21 = phi i64 [ 0, %yes11 ], [ %v186, %body19 ]
  %v22 = icmp slt i64 %i21, %v17
  br i1 %v22, label %body19, label %done20
body19:
  %v23 = mul nsw i64 %i21, 32
  %v24 = add nsw i64 %v23, %i6
  %p25 = getelementptr float, ptr %from, i64 %v24
  %p26 = getelementptr float, ptr %p25, i64 0
  %v27 = load <16 x float>, ptr %p26, align 4
  %p28 = getelementptr float, ptr %p25, i64 32
  %v29 = load <16 x float>, ptr %p28, align 4
  %p30 = getelementptr float, ptr %p25, i64 64
  %v31 = load <16 x float>, ptr %p30, align 4
  %p32 = getelementptr float, ptr %p25, i64 96
  %v33 = load <16 x float>, ptr %p32, align 4
  %p34 = getelementptr float, ptr %p25, i64 128
  %v35 = load <16 x float>, ptr %p34, align 4
  %p36 = getelementptr float, ptr %p25, i64 160
  %v37 = load <16 x float>, ptr %p36, align 4
  %p38 = getelementptr float, ptr %p25, i64 192
  %v39 = load <16 x float>, ptr %p38, align 4
  %p40 = getelementptr float, ptr %p25, i64 224
  %v41 = load <16 x float>, ptr %p40, align 4
  %p42 = getelementptr float, ptr %p25, i64 256
  %v43 = load <16 x float>, ptr %p42, align 4
  %p44 = getelementptr float, ptr %p25, i64 288
  %v45 = load <16 x float>, ptr %p44, align 4
  %p46 = getelementptr float, ptr %p25, i64 320
  %v47 = load <16 x float>, ptr %p46, align 4
  %p48 = getelementptr float, ptr %p25, i64 352
  %v49 = load <16 x float>, ptr %p48, align 4
  %p50 = getelementptr float, ptr %p25, i64 384
  %v51 = load <16 x float>, ptr %p50, align 4
  %p52 = getelementptr float, ptr %p25, i64 416
  %v53 = load <16 x float>, ptr %p52, align 4
  %p54 = getelementptr float, ptr %p25, i64 448
  %v55 = load <16 x float>, ptr %p54, align 4
  %p56 = getelementptr float, ptr %p25, i64 480
  %v57 = load <16 x float>, ptr %p56, align 4
  %v58 = shufflevector <16 x float> %v27, <16 x float> %v29, <16 x i32> <i32 0, i32 16, i32 2, i32 18, i32 4, i32 20, i32 6, i32 22, i32 8, i32 24, i32 10, i32 26, i32 12, i32 28, i32 14, i32 30>
  %v59 = shufflevector <16 x float> %v27, <16 x float> %v29, <16 x i32> <i32 1, i32 17, i32 3, i32 19, i32 5, i32 21, i32 7, i32 23, i32 9, i32 25, i32 11, i32 27, i32 13, i32 29, i32 15, i32 31>
  %v60 = shufflevector <16 x float> %v31, <16 x float> %v33, <16 x i32> <i32 0, i32 16, i32 2, i32 18, i32 4, i32 20, i32 6, i32 22, i32 8, i32 24, i32 10, i32 26, i32 12, i32 28, i32 14, i32 30>
  %v61 = shufflevector <16 x float> %v31, <16 x float> %v33, <16 x i32> <i32 1, i32 17, i32 3, i32 19, i32 5, i32 21, i32 7, i32 23, i32 9, i32 25, i32 11, i32 27, i32 13, i32 29, i32 15, i32 31>
  %v62 = shufflevector <16 x float> %v35, <16 x float> %v37, <16 x i32> <i32 0, i32 16, i32 2, i32 18, i32 4, i32 20, i32 6, i32 22, i32 8, i32 24, i32 10, i32 26, i32 12, i32 28, i32 14, i32 30>
  %v63 = shufflevector <16 x float> %v35, <16 x float> %v37, <16 x i32> <i32 1, i32 17, i32 3, i32 19, i32 5, i32 21, i32 7, i32 23, i32 9, i32 25, i32 11, i32 27, i32 13, i32 29, i32 15, i32 31>
  %v64 = shufflevector <16 x float> %v39, <16 x float> %v41, <16 x i32> <i32 0, i32 16, i32 2, i32 18, i32 4, i32 20, i32 6, i32 22, i32 8, i32 24, i32 10, i32 26, i32 12, i32 28, i32 14, i32 30>
  %v65 = shufflevector <16 x float> %v39, <16 x float> %v41, <16 x i32> <i32 1, i32 17, i32 3, i32 19, i32 5, i32 21, i32 7, i32 23, i32 9, i32 25, i32 11, i32 27, i32 13, i32 29, i32 15, i32 31>
  %v66 = shufflevector <16 x float> %v43, <16 x float> %v45, <16 x i32> <i32 0, i32 16, i32 2, i32 18, i32 4, i32 20, i32 6, i32 22, i32 8, i32 24, i32 10, i32 26, i32 12, i32 28, i32 14, i32 30>
  %v67 = shufflevector <16 x float> %v43, <16 x float> %v45, <16 x i32> <i32 1, i32 17, i32 3, i32 19, i32 5, i32 21, i32 7, i32 23, i32 9, i32 25, i32 11, i32 27, i32 13, i32 29, i32 15, i32 31>
  %v68 = shufflevector <16 x float> %v47, <16 x float> %v49, <16 x i32> <i32 0, i32 16, i32 2, i32 18, i32 4, i32 20, i32 6, i32 22, i32 8, i32 24, i32 10, i32 26, i32 12, i32 28, i32 14, i32 30>
  %v69 = shufflevector <16 x float> %v47, <16 x float> %v49, <16 x i32> <i32 1, i32 17, i32 3, i32 19, i32 5, i32 21, i32 7, i32 23, i32 9, i32 25, i32 11, i32 27, i32 13, i32 29, i32 15, i32 31>
  %v70 = shufflevector <16 x float> %v51, <16 x float> %v53, <16 x i32> <i32 0, i32 16, i32 2, i32 18, i32 4, i32 20, i32 6, i32 22, i32 8, i32 24, i32 10, i32 26, i32 12, i32 28, i32 14, i32 30>
  %v71 = shufflevector <16 x float> %v51, <16 x float> %v53, <16 x i32> <i32 1, i32 17, i32 3, i32 19, i32 5, i32 21, i32 7, i32 23, i32 9, i32 25, i32 11, i32 27, i32 13, i32 29, i32 15, i32 31>
  %v72 = shufflevector <16 x float> %v55, <16 x float> %v57, <16 x i32> <i32 0, i32 16, i32 2, i32 18, i32 4, i32 20, i32 6, i32 22, i32 8, i32 24, i32 10, i32 26, i32 12, i32 28, i32 14, i32 30>
  %v73 = shufflevector <16 x float> %v55, <16 x float> %v57, <16 x i32> <i32 1, i32 17, i32 3, i32 19, i32 5, i32 21, i32 7, i32 23, i32 9, i32 25, i32 11, i32 27, i32 13, i32 29, i32 15, i32 31>
  %v74 = shufflevector <16 x float> %v58, <16 x float> %v60, <16 x i32> <i32 0, i32 1, i32 16, i32 17, i32 4, i32 5, i32 20, i32 21, i32 8, i32 9, i32 24, i32 25, i32 12, i32 13, i32 28, i32 29>
  %v75 = shufflevector <16 x float> %v58, <16 x float> %v60, <16 x i32> <i32 2, i32 3, i32 18, i32 19, i32 6, i32 7, i32 22, i32 23, i32 10, i32 11, i32 26, i32 27, i32 14, i32 15, i32 30, i32 31>
  %v76 = shufflevector <16 x float> %v59, <16 x float> %v61, <16 x i32> <i32 0, i32 1, i32 16, i32 17, i32 4, i32 5, i32 20, i32 21, i32 8, i32 9, i32 24, i32 25, i32 12, i32 13, i32 28, i32 29>
  %v77 = shufflevector <16 x float> %v59, <16 x float> %v61, <16 x i32> <i32 2, i32 3, i32 18, i32 19, i32 6, i32 7, i32 22, i32 23, i32 10, i32 11, i32 26, i32 27, i32 14, i32 15, i32 30, i32 31>
  %v78 = shufflevector <16 x float> %v62, <16 x float> %v64, <16 x i32> <i32 0, i32 1, i32 16, i32 17, i32 4, i32 5, i32 20, i32 21, i32 8, i32 9, i32 24, i32 25, i32 12, i32 13, i32 28, i32 29>
  %v79 = shufflevector <16 x float> %v62, <16 x float> %v64, <16 x i32> <i32 2, i32 3, i32 18, i32 19, i32 6, i32 7, i32 22, i32 23, i32 10, i32 11, i32 26, i32 27, i32 14, i32 15, i32 30, i32 31>
  %v80 = shufflevector <16 x float> %v63, <16 x float> %v65, <16 x i32> <i32 0, i32 1, i32 16, i32 17, i32 4, i32 5, i32 20, i32 21, i32 8, i32 9, i32 24, i32 25, i32 12, i32 13, i32 28, i32 29>
  %v81 = shufflevector <16 x float> %v63, <16 x float> %v65, <16 x i32> <i32 2, i32 3, i32 18, i32 19, i32 6, i32 7, i32 22, i32 23, i32 10, i32 11, i32 26, i32 27, i32 14, i32 15, i32 30, i32 31>
  %v82 = shufflevector <16 x float> %v66, <16 x float> %v68, <16 x i32> <i32 0, i32 1, i32 16, i32 17, i32 4, i32 5, i32 20, i32 21, i32 8, i32 9, i32 24, i32 25, i32 12, i32 13, i32 28, i32 29>
  %v83 = shufflevector <16 x float> %v66, <16 x float> %v68, <16 x i32> <i32 2, i32 3, i32 18, i32 19, i32 6, i32 7, i32 22, i32 23, i32 10, i32 11, i32 26, i32 27, i32 14, i32 15, i32 30, i32 31>
  %v84 = shufflevector <16 x float> %v67, <16 x float> %v69, <16 x i32> <i32 0, i32 1, i32 16, i32 17, i32 4, i32 5, i32 20, i32 21, i32 8, i32 9, i32 24, i32 25, i32 12, i32 13, i32 28, i32 29>
  %v85 = shufflevector <16 x float> %v67, <16 x float> %v69, <16 x i32> <i32 2, i32 3, i32 18, i32 19, i32 6, i32 7, i32 22, i32 23, i32 10, i32 11, i32 26, i32 27, i32 14, i32 15, i32 30, i32 31>
  %v86 = shufflevector <16 x float> %v70, <16 x float> %v72, <16 x i32> <i32 0, i32 1, i32 16, i32 17, i32 4, i32 5, i32 20, i32 21, i32 8, i32 9, i32 24, i32 25, i32 12, i32 13, i32 28, i32 29>
  %v87 = shufflevector <16 x float> %v70, <16 x float> %v72, <16 x i32> <i32 2, i32 3, i32 18, i32 19, i32 6, i32 7, i32 22, i32 23, i32 10, i32 11, i32 26, i32 27, i32 14, i32 15, i32 30, i32 31>
  %v88 = shufflevector <16 x float> %v71, <16 x float> %v73, <16 x i32> <i32 0, i32 1, i32 16, i32 17, i32 4, i32 5, i32 20, i32 21, i32 8, i32 9, i32 24, i32 25, i32 12, i32 13, i32 28, i32 29>
  %v89 = shufflevector <16 x float> %v71, <16 x float> %v73, <16 x i32> <i32 2, i32 3, i32 18, i32 19, i32 6, i32 7, i32 22, i32 23, i32 10, i32 11, i32 26, i32 27, i32 14, i32 15, i32 30, i32 31>
  %v90 = shufflevector <16 x float> %v74, <16 x float> %v78, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 16, i32 17, i32 18, i32 19, i32 8, i32 9, i32 10, i32 11, i32 24, i32 25, i32 26, i32 27>
  %v91 = shufflevector <16 x float> %v74, <16 x float> %v78, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 20, i32 21, i32 22, i32 23, i32 12, i32 13, i32 14, i32 15, i32 28, i32 29, i32 30, i32 31>
  %v92 = shufflevector <16 x float> %v76, <16 x float> %v80, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 16, i32 17, i32 18, i32 19, i32 8, i32 9, i32 10, i32 11, i32 24, i32 25, i32 26, i32 27>
  %v93 = shufflevector <16 x float> %v76, <16 x float> %v80, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 20, i32 21, i32 22, i32 23, i32 12, i32 13, i32 14, i32 15, i32 28, i32 29, i32 30, i32 31>
  %v94 = shufflevector <16 x float> %v75, <16 x float> %v79, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 16, i32 17, i32 18, i32 19, i32 8, i32 9, i32 10, i32 11, i32 24, i32 25, i32 26, i32 27>
  %v95 = shufflevector <16 x float> %v75, <16 x float> %v79, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 20, i32 21, i32 22, i32 23, i32 12, i32 13, i32 14, i32 15, i32 28, i32 29, i32 30, i32 31>
  %v96 = shufflevector <16 x float> %v77, <16 x float> %v81, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 16, i32 17, i32 18, i32 19, i32 8, i32 9, i32 10, i32 11, i32 24, i32 25, i32 26, i32 27>
  %v97 = shufflevector <16 x float> %v77, <16 x float> %v81, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 20, i32 21, i32 22, i32 23, i32 12, i32 13, i32 14, i32 15, i32 28, i32 29, i32 30, i32 31>
  %v98 = shufflevector <16 x float> %v82, <16 x float> %v86, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 16, i32 17, i32 18, i32 19, i32 8, i32 9, i32 10, i32 11, i32 24, i32 25, i32 26, i32 27>
  %v99 = shufflevector <16 x float> %v82, <16 x float> %v86, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 20, i32 21, i32 22, i32 23, i32 12, i32 13, i32 14, i32 15, i32 28, i32 29, i32 30, i32 31>
  %v100 = shufflevector <16 x float> %v84, <16 x float> %v88, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 16, i32 17, i32 18, i32 19, i32 8, i32 9, i32 10, i32 11, i32 24, i32 25, i32 26, i32 27>
  %v101 = shufflevector <16 x float> %v84, <16 x float> %v88, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 20, i32 21, i32 22, i32 23, i32 12, i32 13, i32 14, i32 15, i32 28, i32 29, i32 30, i32 31>
  %v102 = shufflevector <16 x float> %v83, <16 x float> %v87, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 16, i32 17, i32 18, i32 19, i32 8, i32 9, i32 10, i32 11, i32 24, i32 25, i32 26, i32 27>
  %v103 = shufflevector <16 x float> %v83, <16 x float> %v87, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 20, i32 21, i32 22, i32 23, i32 12, i32 13, i32 14, i32 15, i32 28, i32 29, i32 30, i32 31>
  %v104 = shufflevector <16 x float> %v85, <16 x float> %v89, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 16, i32 17, i32 18, i32 19, i32 8, i32 9, i32 10, i32 11, i32 24, i32 25, i32 26, i32 27>
  %v105 = shufflevector <16 x float> %v85, <16 x float> %v89, <16 x i32> <i32 4, i32 5, i32 6, i32 7, i32 20, i32 21, i32 22, i32 23, i32 12, i32 13, i32 14, i32 15, i32 28, i32 29, i32 30, i32 31>
  %v106 = shufflevector <16 x float> %v90, <16 x float> %v98, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 16, i32 17, i32 18, i32 19, i32 20, i32 21, i32 22, i32 23>
  %v107 = shufflevector <16 x float> %v90, <16 x float> %v98, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 24, i32 25, i32 26, i32 27, i32 28, i32 29, i32 30, i32 31>
  %v108 = shufflevector <16 x float> %v92, <16 x float> %v100, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 16, i32 17, i32 18, i32 19, i32 20, i32 21, i32 22, i32 23>
  %v109 = shufflevector <16 x float> %v92, <16 x float> %v100, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 24, i32 25, i32 26, i32 27, i32 28, i32 29, i32 30, i32 31>
  %v110 = shufflevector <16 x float> %v94, <16 x float> %v102, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 16, i32 17, i32 18, i32 19, i32 20, i32 21, i32 22, i32 23>
  %v111 = shufflevector <16 x float> %v94, <16 x float> %v102, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 24, i32 25, i32 26, i32 27, i32 28, i32 29, i32 30, i32 31>
  %v112 = shufflevector <16 x float> %v96, <16 x float> %v104, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 16, i32 17, i32 18, i32 19, i32 20, i32 21, i32 22, i32 23>
  %v113 = shufflevector <16 x float> %v96, <16 x float> %v104, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 24, i32 25, i32 26, i32 27, i32 28, i32 29, i32 30, i32 31>
  %v114 = shufflevector <16 x float> %v91, <16 x float> %v99, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 16, i32 17, i32 18, i32 19, i32 20, i32 21, i32 22, i32 23>
  %v115 = shufflevector <16 x float> %v91, <16 x float> %v99, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 24, i32 25, i32 26, i32 27, i32 28, i32 29, i32 30, i32 31>
  %v116 = shufflevector <16 x float> %v93, <16 x float> %v101, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 16, i32 17, i32 18, i32 19, i32 20, i32 21, i32 22, i32 23>
  %v117 = shufflevector <16 x float> %v93, <16 x float> %v101, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 24, i32 25, i32 26, i32 27, i32 28, i32 29, i32 30, i32 31>
  %v118 = shufflevector <16 x float> %v95, <16 x float> %v103, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 16, i32 17, i32 18, i32 19, i32 20, i32 21, i32 22, i32 23>
  %v119 = shufflevector <16 x float> %v95, <16 x float> %v103, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 24, i32 25, i32 26, i32 27, i32 28, i32 29, i32 30, i32 31>
  %v120 = shufflevector <16 x float> %v97, <16 x float> %v105, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 16, i32 17, i32 18, i32 19, i32 20, i32 21, i32 22, i32 23>
  %v121 = shufflevector <16 x float> %v97, <16 x float> %v105, <16 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15, i32 24, i32 25, i32 26, i32 27, i32 28, i32 29, i32 30, i32 31>
  %v122 = add nsw i64 %i6, 0
  %v123 = mul nsw i64 %v122, %line
  %v124 = add nsw i64 %v123, %i21
  %p125 = getelementptr float, ptr %into, i64 %v124
  store <16 x float> %v106, ptr %p125, align 4
  %v126 = add nsw i64 %i6, 1
  %v127 = mul nsw i64 %v126, %line
  %v128 = add nsw i64 %v127, %i21
  %p129 = getelementptr float, ptr %into, i64 %v128
  store <16 x float> %v108, ptr %p129, align 4
  %v130 = add nsw i64 %i6, 2
  %v131 = mul nsw i64 %v130, %line
  %v132 = add nsw i64 %v131, %i21
  %p133 = getelementptr float, ptr %into, i64 %v132
  store <16 x float> %v110, ptr %p133, align 4
  %v134 = add nsw i64 %i6, 3
  %v135 = mul nsw i64 %v134, %line
  %v136 = add nsw i64 %v135, %i21
  %p137 = getelementptr float, ptr %into, i64 %v136
  store <16 x float> %v112, ptr %p137, align 4
  %v138 = add nsw i64 %i6, 4
  %v139 = mul nsw i64 %v138, %line
  %v140 = add nsw i64 %v139, %i21
  %p141 = getelementptr float, ptr %into, i64 %v140
  store <16 x float> %v114, ptr %p141, align 4
  %v142 = add nsw i64 %i6, 5
  %v143 = mul nsw i64 %v142, %line
  %v144 = add nsw i64 %v143, %i21
  %p145 = getelementptr float, ptr %into, i64 %v144
  store <16 x float> %v116, ptr %p145, align 4
  %v146 = add nsw i64 %i6, 6
  %v147 = mul nsw i64 %v146, %line
  %v148 = add nsw i64 %v147, %i21
  %p149 = getelementptr float, ptr %into, i64 %v148
  store <16 x float> %v118, ptr %p149, align 4
  %v150 = add nsw i64 %i6, 7
  %v151 = mul nsw i64 %v150, %line
  %v152 = add nsw i64 %v151, %i21
  %p153 = getelementptr float, ptr %into, i64 %v152
  store <16 x float> %v120, ptr %p153, align 4
  %v154 = add nsw i64 %i6, 8
  %v155 = mul nsw i64 %v154, %line
  %v156 = add nsw i64 %v155, %i21
  %p157 = getelementptr float, ptr %into, i64 %v156
  store <16 x float> %v107, ptr %p157, align 4
  %v158 = add nsw i64 %i6, 9
  %v159 = mul nsw i64 %v158, %line
  %v160 = add nsw i64 %v159, %i21
  %p161 = getelementptr float, ptr %into, i64 %v160
  store <16 x float> %v109, ptr %p161, align 4
  %v162 = add nsw i64 %i6, 10
  %v163 = mul nsw i64 %v162, %line
  %v164 = add nsw i64 %v163, %i21
  %p165 = getelementptr float, ptr %into, i64 %v164
  store <16 x float> %v111, ptr %p165, align 4
  %v166 = add nsw i64 %i6, 11
  %v167 = mul nsw i64 %v166, %line
  %v168 = add nsw i64 %v167, %i21
  %p169 = getelementptr float, ptr %into, i64 %v168
  store <16 x float> %v113, ptr %p169, align 4
  %v170 = add nsw i64 %i6, 12
  %v171 = mul nsw i64 %v170, %line
  %v172 = add nsw i64 %v171, %i21
  %p173 = getelementptr float, ptr %into, i64 %v172
  store <16 x float> %v115, ptr %p173, align 4
  %v174 = add nsw i64 %i6, 13
  %v175 = mul nsw i64 %v174, %line
  %v176 = add nsw i64 %v175, %i21
  %p177 = getelementptr float, ptr %into, i64 %v176
  store <16 x float> %v117, ptr %p177, align 4
  %v178 = add nsw i64 %i6, 14
  %v179 = mul nsw i64 %v178, %line
  %v180 = add nsw i64 %v179, %i21
  %p181 = getelementptr float, ptr %into, i64 %v180
  store <16 x float> %v119, ptr %p181, align 4
  %v182 = add nsw i64 %i6, 15
  %v183 = mul nsw i64 %v182, %line
  %v184 = add nsw i64 %v183, %i21
  %p185 = getelementptr float, ptr %into, i64 %v184
  store <16 x float> %v121, ptr %p185, align 4
  %v186 = add nsw i64 %i21, 16
  br label %head18
done20:
  store i64 %v17, ptr %room1, align 8
  br label %done12
done12:
  %v187 = load i64, ptr %room1, align 8
  %v188 = add nsw i64 %i6, 16
  %v189 = call i64 @llvm.smin.i64(i64 %columns, i64 %v188)
  br label %head190
head190:
  %i193 = phi i64 [ %i6, %done12 ], [ %v211, %done199 ]
  %v194 = icmp slt i64 %i193, %v189
  br i1 %v194, label %body191, label %done192
body191:
  %v195 = add nsw i64 %reach, %i193
  %v196 = call i64 @llvm.smin.i64(i64 %rows, i64 %v195)
  br label %head197
head197:
  %i200 = phi i64 [ %v187, %body191 ], [ %v210, %body198 ]
  %v201 = icmp slt i64 %i200, %v196
  br i1 %v201, label %body198, label %done199
body198:
  %v202 = mul nsw i64 %i200, 32
  %v203 = add nsw i64 %v202, %i193
  %p204 = getelementptr float, ptr %from, i64 %v203
  %v205 = load float, ptr %p204, align 4
  %v206 = mul nsw i64 %i193, %line
  %v207 = mul nsw i64 %i200, %step
  %v208 = add nsw i64 %v206, %v207
  %p209 = getelementptr float, ptr %into, i64 %v208
  store float %v205, ptr %p209, align 4
  %v210 = add nsw i64 %i200, 1
  br label %head197
done199:
  %v211 = add nsw i64 %i193, 1
  br label %head190
done192:
  %v212 = add nsw i64 %i6, 16
  br label %head3
done5:
  ret void
}

!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.count", i32 2}
!2 = distinct !{!2, !1}
!3 = distinct !{!3, !4}
!4 = !{!"llvm.loop.unroll.count", i32 8}
